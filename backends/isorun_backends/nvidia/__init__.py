"""What the backends for NVIDIA GPUs share."""
