"""What one process measures: latency, memory, parity, and the machine that it runs on."""
