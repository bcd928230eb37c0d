"""Compare backends from a YAML file (``isorun matrix``).

From bottom to top: ``spec`` reads the file, ``jobs`` says what one process is asked to do, ``measurement`` measures,
``results`` stores, ``report`` presents, and ``execution`` plans and runs it all.
"""
