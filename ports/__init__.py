"""Published predictors and codecs in Flax, one file each: architecture, weight loading, licence, origin."""
