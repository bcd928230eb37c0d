"""The graph: isorun's fused form of an encoder, and what is done to it.

- ``dialects/``: what each fused operator becomes, a file of ONNX functions for each dialect
- ``functions.py``: reads them
- ``encoder.py``: writes the fused form of a BERT from its weights
- ``normalize.py``: one spelling for what exporters write in several
- ``contrib.py``, ``contrib.onnxtxt``: ONNX Runtime's fused operators taken apart
- ``fuse.py``: from any exporter's graph to the fused form, by the fusions in ``fusion/``
- ``evaluate.py``: a part of a graph, computed on samples
- ``places.py``: positions and biases by distance
- ``opset.py``: from one version of ONNX's operators to another
- ``precision/``: graphs that say their own precision
- ``prune.py``: weights set to zero
- ``padding.py``, ``padding.onnxtxt``: the fused form without work for padding
- ``tokens.py``: what a node does with tokens
- ``lower.py``: from the fused form to one dialect
- ``files.py``: reads and writes ONNX files
- ``describe.py``: what a graph takes, gives and holds
- ``layers.py``, ``inspect.py``: its layers, and all of it, looked into

Nothing here is imported before a model has to be read; a session on a model that is in the cache reads none.
"""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def code_digest() -> str:
    """SHA-256 of the code that writes graphs: what older code has left in a cache is not taken for its work."""
    import hashlib

    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*")):
        if path.suffix in (".py", ".onnxtxt"):
            digest.update(path.read_bytes())
    return digest.hexdigest()
