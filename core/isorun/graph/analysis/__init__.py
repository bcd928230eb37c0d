"""Analysis of graphs: evaluation of subgraphs, mask and token-level values, layers."""
