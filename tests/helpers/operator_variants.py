"""Variants of operators beyond the ONNX project's node tests: one-node models with feeds."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

F32, I64 = np.float32, np.int64
INTEGERS = tuple(np.dtype(f"{sign}int{bits}").type for sign in ("", "u") for bits in (8, 16, 32, 64))
FLOATS = (np.float16, np.float32, np.float64)
NAN, INF = np.nan, np.inf
X = (np.arange(24, dtype=F32).reshape(2, 3, 4) * 7 % 11) - 4
EDGES = np.array([NAN, INF, -INF, 0.0, -0.0, 1.5, -2.5, 0.5, 3e38, 1e-40], F32)


@dataclass(frozen=True)
class Variant:
    """A node with its inputs.

    Attributes:
        name: operator, opset, attributes, and types and shapes of the inputs.
        model: with dynamic shapes; the outputs have no declared shape.
        feeds: its inputs.
    """

    name: str
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]


def A(numbers: Any, kind: Any = None) -> np.ndarray:
    """An array; what its type cannot hold becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(numbers, kind)


def variant(
    operator: str,
    opset: int,
    inputs: Sequence[np.ndarray | None],
    *,
    constant: Sequence[int] = (),
    outputs: int | Sequence[str] = 1,
    types: Sequence[Any] = (),
    **attributes: Any,
) -> Variant:
    """A model of one node.

    Args:
        operator: of the standard domain.
        opset: of the model.
        inputs: of the node; ``None`` for one that is omitted.
        constant: indices of the inputs that are initializers.
        outputs: their number, or their names with empty ones for those that are omitted.
        types: of the outputs; those of the first input by default.
        attributes: of the node.
    """
    names = [f"x{index}" if array is not None else "" for index, array in enumerate(inputs)]
    produced = [f"y{index}" for index in range(outputs)] if isinstance(outputs, int) else list(outputs)
    node = helper.make_node(operator, names, produced, **attributes)
    fed = {name: array for i, (name, array) in enumerate(zip(names, inputs, strict=True)) if i not in constant and name}
    stored = [numpy_helper.from_array(inputs[index], names[index]) for index in constant]  # type: ignore[arg-type]
    first = next((array for array in inputs if array is not None), np.zeros(0, F32))
    kinds = [*types, *[first.dtype.type] * len(produced)]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, _type(array), _dimensions(name, array)) for name, array in fed.items()],
        [
            helper.make_tensor_value_info(name, _type(kind), None)
            for name, kind in zip(produced, kinds, strict=False)
            if name
        ],
        stored,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    shapes = ", ".join("" if array is None else f"{array.dtype}{list(array.shape)}{_marks(array)}" for array in inputs)
    fixed = "".join(f", {index} constant {inputs[index].reshape(-1)[:6].tolist()}" for index in constant)  # type: ignore[union-attr]
    settings = "".join(f", {key}={value}" for key, value in attributes.items())
    outs = "" if len(produced) == 1 else f" -> {len(produced)}"
    return Variant(f"{operator}-{opset}({shapes}{fixed}{settings}){outs}", model, fed)


def _marks(array: np.ndarray) -> str:
    """What is remarkable of its numbers."""
    if array.dtype.kind != "f":
        return ""
    return " NaN" * bool(np.isnan(array).any()) + " inf" * bool(np.isinf(array).any())


def _dimensions(name: str, array: np.ndarray) -> list[Any]:
    """Dynamic ones, except of what may be a shape, axes and so on: their length is a rank."""
    if name != "x0" and array.dtype == I64 and array.ndim == 1:
        return list(array.shape)
    return [f"{name}_{axis}" for axis in range(array.ndim)]


def _type(of: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(of.dtype if isinstance(of, np.ndarray) else of))


def ints(*values: int) -> np.ndarray:
    return np.array(values, I64)


def values(kind: Any, count: int = 12) -> np.ndarray:
    """Small numbers of both signs where the type has them, with ties."""
    numbers = (np.arange(count) * 5) % 9 - (0 if np.dtype(kind).kind == "u" else 4)
    return numbers.astype(kind)


def variants(subject: Iterable[Variant]) -> Iterator[Variant]:
    """The variants of a subject, without repetitions."""
    known: set[bytes] = set()
    for item in subject:
        key = item.model.SerializeToString() + b"".join(array.tobytes() for array in item.feeds.values())
        if key not in known:
            known.add(key)
            yield item
