"""The graph: isorun's fused form of an encoder, and what is done to it.

- ``dialects/``: what each fused operator becomes, a file of ONNX functions for each dialect
- ``functions.py``: reads them
- ``encoder.py``: writes the fused form of a BERT from its weights
- ``lower.py``: from the fused form to one dialect
- ``files.py``: reads and writes ONNX files
- ``describe.py``: what a graph takes, gives and holds

Nothing here is imported before a model has to be read; a session on a model that is in the cache reads none.
"""
