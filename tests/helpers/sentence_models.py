"""Sentence models and rerankers as sentence-transformers saves them, for tests and ``fixtures/make_sentences.py``."""

import json
from pathlib import Path
from typing import Any

import numpy as np

import exports
import tiny

TEXTS = [
    "A man is eating food.",
    "",
    "The Girl is carrying a BABY in São Paulo — 你好 🙂",
    "a",
    "Padding is removed. " * 12,
    "  two  spaces ",
]
WORDS = [("a man eats", "bread"), ("man", "a man eats bread"), ("bread bread bread", ""), ("eats", "a")]
PROMPT = "Represent this: "

_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def write_variant(minilm: Path, folder: Path) -> Path:
    """The weights of all-MiniLM-L6-v2 with two poolings, dense layers, a default prompt that is not pooled, lower case
    and a short maximum length."""
    folder.mkdir()
    for name in _FILES:
        (folder / name).symlink_to(minilm / name)
    kinds = ("Transformer", "Pooling", "Dense", "Dense", "Normalize")
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, kind in enumerate(kinds)
    ]
    _write(folder / "modules.json", modules)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": 24, "do_lower_case": True})
    prompts = {"prompts": {"own": PROMPT, "document": ""}, "default_prompt_name": "own"}
    _write(folder / "config_sentence_transformers.json", prompts)
    pooling = {"word_embedding_dimension": 384, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    _write(folder / "1_Pooling" / "config.json", {**pooling, "include_prompt": False})
    random = np.random.default_rng(0)
    layers = (("2_Dense", 24, 768, "activation.Tanh"), ("3_Dense", 16, 24, "linear.Identity"))
    for path, out, into, activation in layers:
        fields = {"in_features": into, "out_features": out, "bias": out == 24}
        _write(folder / path / "config.json", {**fields, "activation_function": f"torch.nn.modules.{activation}"})
        tensors = {"linear.weight": random.standard_normal((out, into), np.float32) / np.float32(np.sqrt(into) / 4)}
        if fields["bias"]:
            tensors["linear.bias"] = random.standard_normal(out, np.float32)
        tiny.write_safetensors(folder / path / "model.safetensors", tensors)
    return folder


def write_reranker(tokenizer: Path, folder: Path, labels: int) -> Path:
    """A tiny cross encoder with random weights, and a tokenizer of a few words."""
    tensors = tiny.weights(head="sequence")
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = tensors[name][:labels]
    tensors = {name if name.startswith("classifier") else f"bert.{name}": value for name, value in tensors.items()}
    names = {str(index): f"class {index}" for index in range(labels)}
    settings = {"architectures": ["BertForSequenceClassification"], "id2label": names, "pad_token_id": 0}
    tiny.write_checkpoint(folder, tensors, **settings)
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    types = ["token_type_ids"] if labels == 1 else []
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 7}
    fields |= {"model_input_names": ["input_ids", *types, "attention_mask"]}
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    _write(folder / "tokenizer_config.json", fields | special)
    return folder


def write_sentence_model(folder: Path, name: str = "bert", declared: str = "BertTokenizer") -> Path:
    """A checkpoint with a tokenizer of single letters, pooling, a dense layer, a prompt and a maximum length."""
    from tokenizers import Tokenizer, models

    folder = exports.checkpoint(name, folder)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<|endoftext|>"]
    words = {word: number for number, word in enumerate([*special, *"abc", *(f"##{letter}" for letter in "abc"), "▁"])}
    library = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    if declared in ("RobertaTokenizer", "Qwen2Tokenizer"):
        library = Tokenizer(models.BPE(vocab={**words, "ab": 30, "Ġ": 31}, merges=[("a", "b")]))
    elif declared in ("XLMRobertaTokenizer", "T5Tokenizer"):
        library = Tokenizer(models.Unigram([(word, -float(number)) for word, number in words.items()], unk_id=3))
    library.save(str(folder / "tokenizer.json"))
    contents: dict[str, Any] = {
        "tokenizer_config.json": {"tokenizer_class": declared, "model_max_length": 13, "do_lower_case": False},
        "modules.json": [
            {"type": f"sentence_transformers.models.{kind}", "path": path}
            for kind, path in (("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"))
        ],
        "1_Pooling/config.json": {"pooling_mode": ["mean", "lasttoken"], "include_prompt": False},
        "2_Dense/config.json": {"activation_function": "torch.nn.modules.activation.Tanh"},
        "config_sentence_transformers.json": {"prompts": {"query": "c b "}, "default_prompt_name": "query"},
        "sentence_bert_config.json": {"max_seq_length": 12, "do_lower_case": True},
    }
    for path, content in contents.items():
        _write(folder / path, content)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    width = config.get("hidden_size", config.get("d_model"))
    weight = np.random.default_rng(0).standard_normal((8, 2 * width)).astype(np.float32) / np.float32(width)
    tensors = {"linear.weight": weight, "linear.bias": weight[:, 0]}
    tiny.write_safetensors(folder / "2_Dense" / "model.safetensors", tensors)
    return folder


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
