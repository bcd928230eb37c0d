"""What a graph computes: evaluation of subgraphs, token positions, layers, descriptions."""
