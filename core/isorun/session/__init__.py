"""Sessions: one model, one backend, one calling convention; executor, bindings and batching."""
