"""The fusions, one a file. Each finds what it fuses, says what it refused and why, and leaves the rest alone.

- ``report.py``: what was found, fused and refused
- ``subgraph.py``: what the fusions share: dense layers, closed sub-graphs, putting a fused node in their place
- ``masks.py``: what a value means to an attention: a mask over keys, a bias, or neither
- ``embeddings.py``, ``self_attention.py``, ``skip_layer_normalization.py``, ``bias_gelu.py``: the fusions

What many exporters spell in many ways (masks, attention, layer normalization, GELU) is recognised by what it
computes: the part of the graph is run on samples and compared with the fused operator's formula. What is only
an addition or two (skip connections, embeddings) is matched by its structure.
"""
