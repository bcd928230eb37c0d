"""From a model and options to an executable: backend selection, autotuning, calibration, padding policy."""
