"""JAX as an isorun backend."""
