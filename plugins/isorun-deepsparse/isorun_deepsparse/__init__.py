"""DeepSparse as an isorun backend: see :mod:`isorun_deepsparse.backend`."""
