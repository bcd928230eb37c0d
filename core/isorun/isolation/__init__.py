"""Backends that cannot share an environment: virtual environments, and workers that run in them."""
