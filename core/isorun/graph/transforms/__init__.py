"""Passes over the fused form: padding removal, last layer, pruning, precision, selection of outputs."""
