"""ONNX Runtime's CUDA provider, and what its TensorRT provider shares with it."""
