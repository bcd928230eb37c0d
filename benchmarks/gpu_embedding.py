"""The stage ``embedding`` of ``benchmarks/gpu.py``: texts a second with tokenization, beside sentence-transformers.

The engines, texts and measurements are those of ``benchmarks/embedding.py``; the checkpoints have random weights and a
vocabulary made from the texts, because this stage needs no network.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
from embedding import corpus, in_process
from gpu_stage import SEED, Stage, available

SIZES = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "bert-base": {},
}
VOCABULARY = 30522
OFF = 0.02
"""The greatest difference of a value of a vector from PyTorch's in fp32."""


def embedding(stage: Stage) -> None:
    """``isorun.Embedder`` on ``ort-cuda`` and sentence-transformers on PyTorch, each in a process of its own."""
    if importlib.util.find_spec("sentence_transformers") is None:
        return stage.say("       skipped: sentence-transformers is not installed")
    if ("ort-cuda", "fp16") not in available(stage):
        return None
    engines = [f"isorun ort-cuda fp16 {padding}" for padding in ("keep", "remove")]
    engines = ["pytorch cuda fp32", "pytorch cuda fp16", *engines]
    count = 512 if stage.quick else 4096
    for model in ("minilm",) if stage.quick else SIZES:
        folder = stage.file.with_name("embedding") / model
        prepare(model, folder / "checkpoint")
        for engine in engines:
            with stage.trying(f"{model} {engine}"):
                vectors = folder / f"{engine.replace(' ', '-')}.npy"
                output = in_process(sys.executable, "--measure", engine, folder, count, vectors)
                figures = json.loads(output.splitlines()[-1])
                stage.figures[f"{model} {engine}"] = figures
                off = abs(np.load(vectors) - np.load(folder / "pytorch-cuda-fp32.npy")).max()
                rates = f"corpus {figures['corpus']:8.1f}, batches {figures['batches']:8.1f} texts a second"
                stage.expect(off < OFF, f"{model} {engine}: {rates}, off by {off:.1e}")
    return None


def prepare(model: str, folder: Path) -> None:
    """Write a checkpoint as sentence-transformers saves it."""
    import torch
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizerFast

    if folder.exists():
        return
    words = sorted({word for text in corpus(4096) for word in re.findall(r"\w+|[^\w\s]", text.lower())})
    letters = sorted({letter for word in words for letter in word})
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *words]
    plain = folder.with_name("transformers")
    plain.mkdir(parents=True)
    listed = list(dict.fromkeys(known))[:VOCABULARY]
    (plain / "vocab.txt").write_text("\n".join(listed), encoding="utf-8")
    torch.manual_seed(SEED)
    BertModel(BertConfig(**SIZES[model])).save_pretrained(plain)
    BertTokenizerFast(str(plain / "vocab.txt")).save_pretrained(plain)
    encoder = models.Transformer(str(plain), max_seq_length=256)
    pooling = models.Pooling(encoder.get_embedding_dimension(), "mean")
    SentenceTransformer(modules=[encoder, pooling, models.Normalize()], device="cpu").save_pretrained(str(folder))
