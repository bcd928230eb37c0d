"""The weights of matrix products in the layout of the CPU's kernels, in a file that every session of a model maps.

On its own, each session of ONNX Runtime arranges the weights of its products in memory of its own, so a model that is
open with and without padding, or in several processes, is in memory as often. ONNX Runtime can write what it has
arranged beside a model's weights. Here it goes into the cache entry of the lowered model, whose graph stays as it is.

When it loads a model, ONNX Runtime arranges each weight, and maps the file's instead only where a hash of the result is
the same, so that a file of another processor or release has no effect.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from isorun.plugin import Cache, IsorunError, LoweredModel, cpu_flags, sha256

if TYPE_CHECKING:
    import onnx

WORTHWHILE = 16 * 2**20
"""Bytes of weights from which on the memory is worth a longer first opening."""

_ALIGNMENT = 64  # bytes; kernels load whole registers from aligned addresses
_INDEX, _WEIGHTS = ".packed.json", ".packed.bin"
_ENTRY = "prepacked_"  # with a number: one for each node that uses the weight
_SETTINGS = {
    "session.save_external_prepacked_constant_initializers": "1",
    "session.optimized_model_external_initializers_file_name": "optimized.bin",
}
_logger = logging.getLogger("isorun")

External = dict[str, str]
"""What ONNX's ``external_data`` says of a tensor: its file, its place there, and where its packed forms are."""


def share(
    model: LoweredModel, cache_dir: str | None, settings: object, write: Callable[[Path, Mapping[str, str]], object]
) -> LoweredModel:
    """The model with its weights as kernels read them, made once; the same model where it has none worth it, is not in
    the cache, or the cache cannot be written to.

    Args:
        settings: what decides the layout, besides the processor and the model.
        write: has ONNX Runtime write the model there as it runs it, with more entries of its session configuration.
    """
    folder = model.path.parent
    if cache_dir is None or folder.parent.parent != Path(cache_dir) or _size(folder) < WORTHWHILE:
        return model
    name = f"{model.path.stem}-{sha256(repr((settings, sorted(cpu_flags()))).encode())[:16]}"

    def make(folder: Path) -> dict[str, Any]:
        return {"packed": _write(folder, model.path.name, name, write)}

    kind, key, part = folder.parent.name, folder.name, f"{name}.onnx"
    try:
        entry = Cache(cache_dir).get_or_make(kind, key, make, [model.fingerprint], part=part)
    except (IsorunError, OSError) as error:
        _logger.info("sessions of %s share no weights: %s", model.path, error)
        return model
    return replace(model, path=entry.folder / part) if entry.meta["packed"] else model


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.bin"))


def _write(folder: Path, origin: str, name: str, write: Callable[[Path, Mapping[str, str]], object]) -> int:
    """Write a model of the same graph whose weights have their packed forms beside them; how many have."""
    import onnx

    model = onnx.load(folder / origin, load_external_data=False)
    stored: dict[str, External] = {}  # by what is packed, in what order, of this model in any of its forms
    for index in sorted(folder.glob(f"*{_INDEX}")):
        stored |= json.loads(index.read_text(encoding="utf-8"))
    added: dict[str, External] = {}
    with tempfile.TemporaryDirectory(dir=folder, prefix=".optimized-") as optimized:
        write(Path(optimized) / "model.onnx", _SETTINGS)
        written = onnx.load(Path(optimized) / "model.onnx", load_external_data=False)
        packed = {
            tensor.name: external for tensor in written.graph.initializer if _forms(external := _external(tensor))
        }
        weights = [tensor for tensor in model.graph.initializer if tensor.name in packed and tensor.external_data]
        with (folder / f"{name}{_WEIGHTS}").open("wb") as target:
            for tensor in weights:
                raw, forms = _external(tensor), packed[tensor.name]
                identity = "|".join([raw["location"], raw["offset"], *(key for _, key, _ in _forms(forms))])
                if identity not in stored:
                    stored[identity] = added[identity] = _copy(raw, forms, folder, Path(optimized), target)
                _set_external(tensor, stored[identity])
    if added:
        (folder / f"{name}{_INDEX}").write_text(json.dumps(added), encoding="utf-8")
    else:
        (folder / f"{name}{_WEIGHTS}").unlink()
    if weights:
        onnx.save(model, folder / f"{name}.onnx")
    return len(weights)


def _copy(raw: External, packed: External, folder: Path, optimized: Path, target: BinaryIO) -> External:
    """Copy a weight and its packed forms to a file. They must be in the same one."""

    def copied(path: Path, offset: str, length: str) -> str:
        target.write(bytes(-target.tell() % _ALIGNMENT))
        start = target.tell()
        with path.open("rb") as source:
            source.seek(int(offset))
            target.write(source.read(int(length)))
        return str(start)

    location = Path(target.name).name
    place = {**raw, "location": location, "offset": copied(folder / raw["location"], raw["offset"], raw["length"])}
    for entry, key, blobs in _forms(packed):
        parts = [key]
        for offset, length, checksum in blobs:
            parts.append(";".join((copied(optimized / packed["location"], offset, length), length, checksum)))
        place[entry] = "|".join(parts)
    return place


def _forms(external: External) -> list[tuple[str, str, list[list[str]]]]:
    """The packed forms of a weight, one for each node that has another: the entry's name, the form's key with its hash,
    and its blobs as offset, length and checksum.
    """
    forms = []
    for entry, value in external.items():
        if entry.startswith(_ENTRY):
            key, *blobs = value.split("|")
            forms.append((entry, key, [blob.split(";") for blob in blobs]))
    return forms


def _external(tensor: onnx.TensorProto) -> External:
    return {entry.key: entry.value for entry in tensor.external_data}


def _set_external(tensor: onnx.TensorProto, external: External) -> None:
    del tensor.external_data[:]
    for key, value in external.items():
        tensor.external_data.add(key=key, value=value)
