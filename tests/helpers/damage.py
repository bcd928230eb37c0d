"""Damages the files of a model's folder, by a seed: JSON of wrong types and sizes, weights, metadata, missing files."""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31 - 1, 2**31, 2**63, 10**400, 1e308, -1e308, 0.5, float("inf"), float("nan")),
    *(
        "",
        "a",
        "x" * 10_000,
        "\ud800",
        "\0",
        "../..",
        "/etc/passwd",
        [],
        {},
        [None],
        [[]],
        {"a": None},
        [1, "a"],
        {"": {}},
    ),
]
"""Put in the place of any value."""

_TYPES = ("F64", "F32", "F16", "BF16", "I64", "I8", "BOOL", "F8_E4M3", "nonsense", "")


def damage(folder: Path, seed: int) -> str:
    """Damage one file of a folder, or two. Returns what was done."""
    chosen = random.Random(seed)
    done = [_damage_one(folder, chosen) for _ in range(1 if chosen.random() < 0.8 else 2)]
    return f"seed {seed}: {', '.join(done)}"


def _damage_one(folder: Path, chosen: random.Random) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = chosen.choice(files)
    kinds: list[Callable[[Path, random.Random], None]] = [_truncate, _random_bytes, _replace]
    if path.suffix == ".json":
        kinds += [_value] * 12 + [_many, _deep, _large, _add_key, _remove_key]
    elif path.suffix == ".safetensors":
        kinds += [_header, _header, _header, _length, _numbers]
    elif path.suffix == ".onnx":
        kinds += [_metadata] * 8
    kind = chosen.choice(kinds)
    kind(path, chosen)
    return f"{kind.__name__.removeprefix('_')} of {path.relative_to(folder)}"


def _truncate(path: Path, chosen: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chosen.randrange(len(content) + 1)])


def _random_bytes(path: Path, chosen: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(chosen.choice((1, 3, 20))):
        if content:
            content[chosen.randrange(len(content))] = chosen.randrange(256)
    path.write_bytes(content)


def _replace(path: Path, chosen: random.Random) -> None:
    """A folder, a loop of links, nothing, or nonsense."""
    kind = chosen.choice(("folder", "link", "nothing", "nonsense"))
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(path.name)
    elif kind == "nonsense":
        path.write_bytes(chosen.randbytes(chosen.choice((0, 1, 8, 4096))))


def _nodes(document: Any) -> list[tuple[Any, Any]]:
    """Every place of a value: its container and its key."""
    places, stack = [], [document]
    while stack:
        node = stack.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        places += [(node, key) for key in keys]
        stack += [node[key] for key in keys]
    return places


def _change(path: Path, change: Callable[[Any], Any]) -> None:
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError):  # damaged before
        return
    path.write_text(json.dumps(change(document)), encoding="utf-8")


def _value(path: Path, chosen: random.Random) -> None:
    def change(document: Any) -> Any:
        places = _nodes(document)
        if not places or chosen.random() < 0.05:
            return chosen.choice(VALUES)
        node, key = chosen.choice(places)
        node[key] = chosen.choice(VALUES)
        return document

    _change(path, change)


def _add_key(path: Path, chosen: random.Random) -> None:
    """A key of another file, or of none."""
    names = [path.parent / name for name in ("config.json", "tokenizer_config.json", "sentence_bert_config.json")]
    names += [path.parent / "special_tokens_map.json", path.parent / "added_tokens.json"]
    more = (
        "id2label",
        "label2id",
        "auto_map",
        "rope_scaling",
        "rope_parameters",
        "layer_types",
        "additional_special_tokens",
    )
    more += ("added_tokens_decoder", "extra_special_tokens", "cls_token", "pooling_mode", "prompts", "truncate_dim")
    more += (
        "sentence_transformers",
        "architectures",
        "quantization_config",
        "pruned_heads",
        "additional_special_tokens",
    )

    def change(document: Any) -> Any:
        return {**(document if isinstance(document, dict) else {}), chosen.choice(more): chosen.choice(VALUES)}

    target = chosen.choice([path, *names])
    if not target.exists():
        target.write_text("{}")
    if target.is_file():
        _change(target, change)


def _remove_key(path: Path, chosen: random.Random) -> None:
    def change(document: Any) -> Any:
        if places := _nodes(document):
            node, key = chosen.choice(places)
            del node[key]
        return document

    _change(path, change)


def _many(path: Path, chosen: random.Random) -> None:
    """100,000 entries where there was one."""

    def change(document: Any) -> Any:
        places = [(node, key) for node, key in _nodes(document) if isinstance(node[key], dict | list)]
        target = chosen.choice([None, *places])
        node = document if target is None else target[0][target[1]]
        if isinstance(node, list):
            node += [node[0] if node else 0] * 100_000
        elif isinstance(node, dict):
            value = next(iter(node.values()), 0)
            node.update(
                {f"key {number}": value for number in range(100_000 if not isinstance(value, dict) else 20_000)}
            )
        return document

    _change(path, change)


def _deep(path: Path, chosen: random.Random) -> None:
    depth = chosen.choice((50, 200, 900, 100_000))
    content = path.read_bytes()
    nested = chosen.choice((b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth))
    values = [position for position in range(len(content)) if content[position : position + 1] == b":"]
    at = chosen.choice(values) + 1 if values else 0
    end = next((position for position in range(at, len(content)) if content[position : position + 1] in b",}"), at)
    path.write_bytes(content[:at] + nested + content[end:])


def _large(path: Path, chosen: random.Random) -> None:
    """Tens of megabytes."""
    unit = chosen.choice((b"[],", b'{"":0},', b'"ab",', b"1.5,", b" "))
    path.write_bytes(b"[" + unit * (chosen.choice((2, 15, 40, 80)) * 2**20 // len(unit)) + b"0]")


def _split(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _join(path: Path, header: Any, content: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


def _header(path: Path, chosen: random.Random) -> None:
    """Another type, shape, rank or place of a tensor; tensors that are missing, or 100,000 more."""
    try:
        header, content = _split(path)
        name = chosen.choice(sorted(header))
        tensor = header[name]
        kind = chosen.choice(("dtype", "shape", "rank", "offsets", "value", "missing", "renamed", "many", "huge"))
        if kind == "dtype":
            tensor["dtype"] = chosen.choice(_TYPES)
        elif kind == "shape":
            tensor["shape"] = tensor["shape"][::-1]
        elif kind == "rank":
            tensor["shape"] = chosen.choice(([], [1, *tensor["shape"]], [*tensor["shape"], 1], [0], [0, 2**40]))
        elif kind == "offsets":
            tensor["data_offsets"] = chosen.choice(([0, 0], [0, 2**63], [-1, 4], [4, 0], [0, len(content) + 1]))
        elif kind == "value":
            node, key = chosen.choice(_nodes(tensor))
            node[key] = chosen.choice(VALUES)
        elif kind == "missing":
            del header[name]
        elif kind == "renamed":
            header[chosen.choice(("x", "", "encoder.layer.9.a", "classifier.weight", "pooler.x", "a" * 10_000))] = (
                header.pop(name)
            )
        elif kind == "many":
            empty = {"dtype": "F32", "shape": [0], "data_offsets": [len(content)] * 2}
            header |= {f"{chosen.choice(('cls', 'x'))}.{number}": empty for number in range(100_000)}
        else:
            tensor["shape"] = [2**31, 2**31]
    except (ValueError, LookupError, TypeError, RecursionError, struct.error):  # damaged before
        return
    _join(path, header, content)


def _length(path: Path, chosen: random.Random) -> None:
    """Another length of the header."""
    length = chosen.choice((0, 1, 2**20, 99 * 10**6, 2**31, 2**63, 2**64 - 1))
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])


def _numbers(path: Path, chosen: random.Random) -> None:
    """NaN, infinity and huge numbers among the weights."""
    try:
        header, content = _split(path)
    except (ValueError, RecursionError, struct.error):
        return
    changed = bytearray(content)
    bits = chosen.choice((b"\xff\xff\xff\xff", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f", b"\x01\x00\x00\x00"))
    for _ in range(chosen.choice((1, 100))):
        if len(changed) >= 4:
            at = chosen.randrange(len(changed) // 4) * 4
            changed[at : at + 4] = bits
    _join(path, header, bytes(changed))


def _metadata(path: Path, chosen: random.Random) -> None:
    """The metadata of an ONNX file: a wrong value in its JSON, or other text."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path)
    except DecodeError:
        return
    for entry in model.metadata_props:
        scratch = path.with_name("metadata.json")
        scratch.write_text(entry.value)
        chosen.choice((_value, _value, _value, _many, _deep, _remove_key, _truncate))(scratch, chosen)
        text = scratch.read_text(errors="replace")
        scratch.unlink()
        entry.value = text
    onnx.save(model, path)
