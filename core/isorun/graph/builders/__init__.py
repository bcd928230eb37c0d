"""The fused form of an encoder, from a checkpoint's weights."""
