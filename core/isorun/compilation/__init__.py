"""From a model and options to a compiled model: backend selection, autotuning, calibration, padding policy."""
