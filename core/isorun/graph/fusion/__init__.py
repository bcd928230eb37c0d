"""The fusions, a file or folder for each fused operator: each reports the candidates that it rejects, with the reason.

Patterns that exporters write in many ways (masks, attention, layer normalization, GELU) are recognized numerically:
the subgraph is evaluated on samples and compared with the fused operator's formula. Patterns of one or two additions
(skip connections, embeddings) are matched by structure.
"""
