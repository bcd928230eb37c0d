"""The protocols, each a router over the same models."""
