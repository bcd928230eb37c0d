"""Sessions: one model, one backend, one calling convention; bindings and the scheduler of concurrent requests."""
