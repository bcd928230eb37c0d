"""Self-attention: the subgraph of an attention, what it computes, and the operator that replaces it."""
