"""What a user would pick instead of isorun, on the traffic of ``traffic.py``, with random weights of a preset's sizes.

``traffic.py`` runs this with another Python (``--peers-python``), one engine a process. Each needs NumPy and

- PyTorch: ``pytorch``, ``torch.compile``;
- PyTorch and torchao, or zentorch: ``torchao``, ``zentorch``, both compiled;
- PyTorch, llama-cpp-python and gguf: ``llama.cpp``, in calls of four rows, without padding;
- ``sentence-transformers[onnx,openvino]``: those two, called with token ids.

PyTorch, torchao and zentorch run plain modules, and sentence-transformers an export of transformers' BERT. Compiling
takes a minute or more, which is not timed: unlike isorun, peers serve the timed batches once before.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import traffic
from torch import Tensor, nn
from torch.nn import functional

LAYERS = {"bert-3l": 3, "bert-6l": 6, "bert-base": 12}
WIDTH, HEADS, INNER = 768, 12, 3072


class Layer(nn.Module):
    """One layer of BERT, its attention by ``scaled_dot_product_attention``."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, hidden: Tensor, attend: Tensor) -> Tensor:
        rows, length, _ = hidden.shape
        query, key, value = (
            part(hidden).view(rows, length, HEADS, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        context = functional.scaled_dot_product_attention(query, key, value, attend)
        hidden = self.first(hidden + self.output(context.transpose(1, 2).reshape(rows, length, WIDTH)))
        return self.second(hidden + self.narrow(functional.gelu(self.wide(hidden))))


class Bert(nn.Module):
    """Embeddings, layers and a pooler."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(rows, WIDTH) for rows in (30522, 512, 2))
        self.norm, self.pooler = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        places = self.places(torch.arange(input_ids.shape[1]))
        hidden = self.norm(self.words(input_ids) + self.kinds(token_type_ids) + places)
        attend = attention_mask.bool()[:, None, None, :]
        for layer in self.layers:
            hidden = layer(hidden, attend)
        return hidden, torch.tanh(self.pooler(hidden[:, 0]))


def compiled(engine: str, layers: int) -> traffic.Run:
    """A function that runs PyTorch's model on feeds."""
    model: Any = Bert(layers).eval()
    if engine.startswith("torchao"):
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        quantize_(model, Int8DynamicActivationInt8WeightConfig())
    if engine.startswith("zentorch"):
        import zentorch  # noqa: F401 - registers its backend

        model = torch.compile(model, backend="zentorch")
    elif not engine.startswith("pytorch"):
        model = torch.compile(model)

    def run(feeds: traffic.Feeds) -> Any:
        with torch.inference_mode():
            return model(**{name: torch.from_numpy(array) for name, array in feeds.items()})

    return run


def sentence_transformers(backend: str, layers: int, folder: Path) -> traffic.Run:
    """Transformers' BERT with mean pooling, exported for a backend of sentence-transformers."""
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizerFast

    source = folder / "checkpoint"
    if not source.exists():
        folder.mkdir(parents=True, exist_ok=True)
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{number}" for number in range(30517))]
        (folder / "vocab.txt").write_text("\n".join(words))
        inner = folder / "transformer"
        BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(inner)
        BertModel(BertConfig(num_hidden_layers=layers)).save_pretrained(inner)
        transformer = models.Transformer(str(inner))
        SentenceTransformer(modules=[transformer, models.Pooling(WIDTH)], device="cpu").save_pretrained(str(source))
    settings: dict[str, Any] = {
        "onnx": {"provider": "CPUExecutionProvider"},
        "openvino": {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}},  # OpenVINO would choose bf16
    }[backend]
    exported = folder / backend
    if not exported.exists():
        exporting = SentenceTransformer(str(source), device="cpu", backend=backend, model_kwargs={"export": True})
        exporting.save_pretrained(str(exported))
    model = SentenceTransformer(str(exported), device="cpu", backend=backend, model_kwargs=settings)

    def run(feeds: traffic.Feeds) -> Any:
        with torch.inference_mode():
            return model({name: torch.from_numpy(array) for name, array in feeds.items()})

    return run


def write_gguf(path: Path, layers: int, kind: str) -> None:
    """PyTorch's model as GGUF: matrices in ``f16`` or ``q8_0``, everything else in fp32."""
    import gguf

    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(layers)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.NONE)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(30522)
    writer.add_token_type_count(2)
    names = {"words": "token_embd", "places": "position_embd", "kinds": "token_types", "norm": "token_embd_norm"}
    parts = {"query": "attn_q", "key": "attn_k", "value": "attn_v", "output": "attn_output"}
    parts |= {"first": "attn_output_norm", "wide": "ffn_up", "narrow": "ffn_down", "second": "layer_output_norm"}
    type_ = gguf.GGMLQuantizationType[kind.upper()]
    for name, tensor in Bert(layers).state_dict().items():
        place, *rest = name.split(".")
        if place == "pooler":
            continue
        target = f"blk.{rest[0]}.{parts[rest[1]]}" if place == "layers" else names[place]
        array = tensor.numpy()
        packed = array.ndim == 2 and place not in ("places", "kinds")
        data = gguf.quantize(array, type_) if packed else array
        writer.add_tensor(f"{target}.{rest[-1]}", data, raw_dtype=type_ if packed else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama(kind: str, layers: int, folder: Path) -> traffic.Run:
    """Every token's vector by llama.cpp, in calls of four rows."""
    import llama_cpp as library

    path = folder / f"model-{kind}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_gguf(path.with_suffix(".part"), layers, kind)
        path.with_suffix(".part").replace(path)
    rows, cores = 4, len(os.sched_getaffinity(0))
    most = rows * traffic.MOST
    quiet = library.llama_log_callback(lambda *_: None)
    library.llama_log_set(quiet, ctypes.c_void_p(0))
    library.llama_backend_init()
    model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
    settings = library.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = most
    settings.n_seq_max = rows
    settings.n_threads = settings.n_threads_batch = cores
    settings.embeddings = True
    settings.pooling_type = library.LLAMA_POOLING_TYPE_NONE
    context = library.llama_init_from_model(model, settings)
    batch = library.llama_batch_init(most, 0, 1)

    def encode(sequences: list[np.ndarray]) -> np.ndarray:
        count = 0
        for row, ids in enumerate(sequences):
            for position, token in enumerate(ids.tolist()):
                batch.token[count], batch.pos[count] = token, position
                batch.n_seq_id[count], batch.seq_id[count][0], batch.logits[count] = 1, row, 1
                count += 1
        batch.n_tokens = count
        if library.llama_encode(context, batch):
            raise RuntimeError("llama_encode failed")
        embeddings = library.llama_get_embeddings(context)
        return np.ctypeslib.as_array(embeddings, (count, WIDTH)).copy()

    def run(feeds: traffic.Feeds) -> list[np.ndarray]:
        lengths = feeds["attention_mask"].sum(axis=1)
        texts = [ids[:length] for ids, length in zip(feeds["input_ids"], lengths, strict=True)]
        return [encode(texts[start : start + rows]) for start in range(0, len(texts), rows)]

    run.keep = quiet  # the library calls it
    return run


def opened(engine: str, layers: int, folder: Path) -> traffic.Run:
    torch.manual_seed(0)
    name, _, rest = engine.partition(" ")
    if name == "llama.cpp":
        return llama(rest, layers, folder)
    if name == "sentence-transformers":
        return sentence_transformers(rest.split()[0], layers, folder)
    return compiled(engine, layers)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=traffic.PEERS, required=True)
    parser.add_argument("--preset", choices=LAYERS, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--even", action="store_true")
    parser.add_argument("--pad-to", type=int, default=0)
    arguments = parser.parse_args()
    batches = traffic.stream(arguments.batches, even=arguments.even, pad_to=arguments.pad_to)
    folder = Path(__file__).parent / "out" / "peers" / arguments.preset
    run = opened(arguments.engine, LAYERS[arguments.preset], folder)
    first = traffic.warm_up(arguments.batches, even=arguments.even, pad_to=arguments.pad_to)
    for feeds in [*first, *batches]:  # the batches too, since a new width may be compiled
        run(feeds)
    wall, cpu = traffic.timed(lambda: [run(feeds) for feeds in batches])
    count = traffic.tokens(batches)
    print(json.dumps({"tokens_per_second": count / wall, "tokens_per_cpu_second": count / cpu}))


if __name__ == "__main__":
    main()
