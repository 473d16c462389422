"""Measure how hackable a speech quality predictor is."""
