"""Mends predictors: pairs x̂ ≻ y in a replay buffer, and gradient steps on them beside what people said."""
