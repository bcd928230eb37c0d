"""Adapters for other libraries. Each module needs that library.

An extra of the same name installs it; ``graph`` installs ONNX.
"""
