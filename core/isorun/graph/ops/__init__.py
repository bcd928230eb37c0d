"""The fused operators: their dialects, and lowering to one of them."""
