"""The rounding error of each precision, by which the checks tell them apart."""

from __future__ import annotations

ERRORS = {
    "fp64": (0.0, 1e-12),
    "fp32": (0.0, 5e-6),
    "tf32": (5e-5, 1e-3),
    "fp16": (5e-5, 1e-3),
    "bf16": (5e-4, 1e-2),
    "int8": (1e-3, 0.15),
}
"""The minimum and maximum relative error (root mean square) of a product of 256 terms in each precision. Rounding to p
bits has a relative error of at most 2^-p, 0.6 of that in the root mean square, and both factors are rounded: 3e-8 for
fp32 and its sums, 2e-4 for the 11 bits of fp16 and tf32, 2e-3 for the 8 bits of bf16. fp32 has no minimum, since a
backend may compute in more than was requested. The error of int8 is that of a BERT's hidden states."""
