"""NVIDIA's TensorRT, used directly."""
