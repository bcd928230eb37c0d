"""An isorun backend: see :mod:`isorun_template.backend`."""
