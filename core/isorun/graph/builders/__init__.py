"""Construction of fused encoders from a checkpoint's weights."""
