"""Compare backends from a YAML file (``isorun matrix``).

From bottom to top: ``spec`` reads the file, ``jobs`` defines what one process does, ``measurement`` measures,
``results`` stores, ``report`` presents, and ``execution`` plans and runs all of it.
"""
