"""Small models that compute something simple, on inputs and outputs of many kinds, and the same in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from isorun_conformance.sample_models import IR_VERSION, OPSET, SampleModel, parsed

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Formula(SampleModel):
    """A model in ONNX's text format. ``ROWS`` in it is the batch, a symbol or a number.

    Attributes:
        graph: the signature and body.
        arrays: feeds, from a generator and the number of rows.
        compute: the outputs for feeds, in the types that the model declares.
        names: other names for inputs and outputs, which may hold any character.
        opset: the version of the operators.
    """

    graph: str = ""
    arrays: Callable[[np.random.Generator, int], Arrays] = lambda *_: {}
    compute: Callable[..., Arrays] = dict
    names: Mapping[str, str] = field(default_factory=dict)
    opset: int = OPSET

    def write(self, path: Path) -> None:
        import onnx

        header = f'<ir_version: {IR_VERSION}, opset_import: ["" : {self.opset}]>'
        signature = self.graph.replace("ROWS", "rows" if self.dynamic else str(self.batch))
        model = onnx.load_from_string(parsed(f"{header}\n{signature}"))
        for value in (*model.graph.input, *model.graph.output):
            value.name = self._renamed(value.name)
        for node in model.graph.node:
            node.input[:] = map(self._renamed, node.input)
            node.output[:] = map(self._renamed, node.output)
        onnx.save(model, path)

    def feeds(self, seed: int = 0, *, rows: int | None = None) -> Arrays:
        """Random feeds."""
        arrays = self.arrays(np.random.default_rng(seed), self.batch if rows is None else rows)
        return {self._renamed(name): array for name, array in arrays.items()}

    def outputs(self, feeds: Mapping[str, Any]) -> Arrays:
        """The outputs by name."""
        original = {renamed: name for name, renamed in self.names.items()}
        computed = self.compute(**{original.get(name, name): array for name, array in feeds.items()})
        return {self._renamed(name): array for name, array in computed.items()}

    def _renamed(self, name: str) -> str:
        return self.names.get(name, name)


def four_outputs(*, dynamic: bool) -> Formula:
    """Two inputs and four outputs of one type and shape, in an order that no sorting gives."""
    return Formula(
        "four-outputs",
        dynamic,
        5,
        graph="""g (float[ROWS, 3] x, float[ROWS, 3] a) =>
            (float[ROWS, 3] mid, float[ROWS, 3] zeta, float[ROWS, 3] alpha, float[ROWS, 3] last)
            { mid = Add (x, a)  zeta = Sub (x, a)  alpha = Mul (x, a)  last = Neg (a) }""",
        arrays=lambda random, rows: {name: random.standard_normal((rows, 3), np.float32) for name in "xa"},
        compute=lambda x, a: {"mid": x + a, "zeta": x - a, "alpha": x * a, "last": -a},
    )


def sizes() -> Formula:
    """A sum of two arrays, whose run fails, but for one row, unless there are three rows."""
    return Formula(
        "sizes",
        True,
        3,
        graph="g (float[ROWS] x, float[columns] y) => (float[columns] z) { z = Add (x, y) }",
        arrays=lambda random, rows: {"x": np.ones(rows, np.float32), "y": random.standard_normal(3, np.float32)},
        compute=lambda x, y: {"z": x + y},
    )


def of_type(onnx_type: str, dtype: np.dtype[Any], *, dynamic: bool) -> Formula:
    """Outputs of an input's type: ``y`` is the input, ``z`` is it twice, one after the other."""

    def arrays(random: np.random.Generator, rows: int) -> Arrays:
        values = random.integers(0, 2**62, (rows, 3))
        if dtype.kind == "O":
            texts = [f"{value:x} ümläut 文字" for value in values.flat]
            texts[:3] = "", "  blanks \n", "before\0after"
            return {"x": np.array(texts, object).reshape(values.shape)}
        if dtype.kind in "iu":  # up to the ends of the type, which a narrower one cannot hold
            limits = np.iinfo(dtype)
            x = random.integers(limits.min, limits.max, (rows, 3), dtype, endpoint=True)
            x[:, 0] = limits.max
            return {"x": x}
        return {
            "x": (values % 2).astype(bool) if dtype.kind == "b" else random.standard_normal((rows, 3)).astype(dtype)
        }

    return Formula(
        f"type-{onnx_type}",
        dynamic,
        graph=f"""g ({onnx_type}[ROWS, 3] x) => ({onnx_type}[ROWS, 3] y, {onnx_type}[ROWS, 6] z)
            {{ y = Identity (x)  z = Concat <axis = 1> (x, x) }}""",
        arrays=arrays,
        compute=lambda x: {"y": x, "z": np.concatenate([x, x], axis=1)},
    )


def other_types(*, dynamic: bool) -> Formula:
    """Outputs of other types than the input's: int64, bool, and a float of rank 0."""
    return Formula(
        "other-types",
        dynamic,
        graph="""g (float[ROWS, 5] x) => (int64[ROWS] best, bool[ROWS, 5] positive, float[] total)
            {
                best = ArgMax <axis = 1, keepdims = 0> (x)
                zero = Constant <value = float {0}> ()
                positive = Greater (x, zero)
                total = ReduceSum <keepdims = 0> (x)
            }""",
        arrays=lambda random, rows: {"x": random.standard_normal((rows, 5), np.float32)},
        compute=lambda x: {"best": x.argmax(axis=1), "positive": x > 0, "total": np.asarray(x.sum(dtype=np.float64))},
    )


def views(*, dynamic: bool) -> Formula:
    """Outputs that a runtime could return as views: of a feed, of each other, or of a weight."""
    weight = np.arange(6, dtype=np.float32)
    return Formula(
        "views",
        dynamic,
        graph="""g (float[ROWS, 6] x) =>
            (float[ROWS, 6] y, float[ROWS, 6] z, float[6, ROWS] t, float[ROWS, 1, 6] u, float[6] w)
            <float[6] weight = {0, 1, 2, 3, 4, 5}, int64[1] one = {1}>
            {
                y = Identity (x)  z = Identity (x)  t = Transpose <perm = [1, 0]> (x)  u = Unsqueeze (x, one)
                w = Identity (weight)
            }""",
        arrays=lambda random, rows: {"x": random.standard_normal((rows, 6), np.float32)},
        compute=lambda x: {"y": x, "z": x, "t": x.T, "u": x[:, None], "w": weight},
    )


def sequences() -> Formula:
    """The last of a sequence of arrays, and the sequence with that one more; one of its arrays has no elements."""
    return Formula(
        "sequences",
        True,
        graph="""g (seq(float[n, 3]) x) => (seq(float[n, 3]) y, float[k, 3] last)
            <int64 end = {-1}>
            { last = SequenceAt (x, end)  y = SequenceInsert (x, last) }""",
        arrays=lambda random, rows: {
            "x": [random.standard_normal((size, 3), np.float32) for size in (rows, 0, 1 + rows, 1)]  # type: ignore[dict-item]
        },
        compute=lambda x: {"y": [*x, x[-1]], "last": x[-1]},
    )


def default_value() -> Formula:
    """An input with a value of the model's own, which a feed may replace."""
    default = np.array([1, 2, 3], np.float32)
    return Formula(
        "default-value",
        graph="""g (float[ROWS, 3] x, float[3] scale = {1, 2, 3}) => (float[ROWS, 3] y)
            { y = Mul (x, scale) }""",
        arrays=lambda random, rows: {"x": random.standard_normal((rows, 3), np.float32)},
        compute=lambda x, scale=default: {"y": x * scale},
    )


def unused_input(*, dynamic: bool) -> Formula:
    """An input that no node reads, between two that are."""
    return Formula(
        "unused-input",
        dynamic,
        graph="""g (float[ROWS, 3] x, int64[ROWS] unused, float[ROWS, 3] a) => (float[ROWS, 3] y)
            { y = Sub (x, a) }""",
        arrays=lambda random, rows: {
            "x": random.standard_normal((rows, 3), np.float32),
            "unused": np.arange(rows),
            "a": random.standard_normal((rows, 3), np.float32),
        },
        compute=lambda x, unused, a: {"y": x - a},  # noqa: ARG005
    )


def of_opset(opset: int, *, dynamic: bool) -> Formula:
    """An operator that means something else, or has other inputs, in opset 17."""
    node, columns = _OF_OPSETS[opset]

    def compute(x: np.ndarray) -> Arrays:
        exponentials = np.exp(x - x.max(axis=(1, 2), keepdims=True))
        softmax = exponentials / exponentials.sum(axis=(1, 2), keepdims=True)
        return {"y": {10: x.clip(-0.5, 0.5), 11: softmax, 18: x.mean(axis=1, keepdims=True)}[opset]}

    return Formula(
        f"opset-{opset}",
        dynamic,
        3,
        graph=f"""g (float[ROWS, 2, 4] x) => (float[ROWS, {columns}, 4] y) <int64[1] one = {{1}}> {{ y = {node} }}""",
        arrays=lambda random, rows: {"x": random.standard_normal((rows, 2, 4), np.float32)},
        compute=compute,
        opset=opset,
    )


_OF_OPSETS = {
    10: ("Clip <min = -0.5, max = 0.5> (x)", 2),
    11: ("Softmax <axis = 1> (x)", 2),
    18: ("ReduceMean (x, one)", 1),
}
OPSETS = (*_OF_OPSETS,)


def one_operator(name: str) -> Formula:
    """A model of one operator with one input and no weights."""
    return Formula(
        f"one-{name}",
        graph=f"g (float[4, 8] x) => (float[4, 8] y) {{ y = {name} (x) }}",
        arrays=lambda random, rows: {"x": random.standard_normal((rows, 8), np.float32)},
    )


FUNCTIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "Softmax": lambda x: np.exp(x - np.logaddexp.reduce(x, axis=-1, keepdims=True)),
    "LogSoftmax": lambda x: x - np.logaddexp.reduce(x, axis=-1, keepdims=True),
    "Sigmoid": lambda x: np.exp(-np.logaddexp(0, -x)),
    "Softplus": lambda x: np.logaddexp(0, x),
    "Tanh": np.tanh,
}
"""Functions of exponentials, which are out of range long before the functions are. In fp64."""


def at_large_values(function: str) -> Formula:
    """One of :data:`FUNCTIONS` at values from -1,000 to 1,000, of which each row has some at one end."""
    compute = FUNCTIONS[function]
    ends = np.array([[-300], [-89], [0], [89], [300], [1000]], np.float32)
    return Formula(
        f"large-{function}",
        batch=6,
        graph=f"g (float[6, 8] x) => (float[6, 8] y) {{ y = {function} (x) }}",
        arrays=lambda random, rows: {"x": random.uniform(-20, 20, (rows, 8)).astype(np.float32) + ends},
        compute=lambda x: {"y": compute(x.astype(np.float64)).astype(np.float32)},
    )


def equal_values() -> Formula:
    """Where each row is largest and smallest, which it is at several places: the first of them."""
    return Formula(
        "equal-values",
        graph="""g (float[ROWS, 9] x) => (int64[ROWS] most, int64[ROWS] least)
            { most = ArgMax <axis = 1, keepdims = 0> (x)  least = ArgMin <axis = 1, keepdims = 0> (x) }""",
        arrays=lambda random, rows: {"x": random.integers(0, 2, (rows, 9)).astype(np.float32)},
        compute=lambda x: {"most": x.argmax(axis=1), "least": x.argmin(axis=1)},
    )


def branches() -> Formula:
    """``y`` is ``-x`` or ``|x|``, by a condition in the feeds."""
    return Formula(
        "branches",
        graph="""g (bool negative, float[ROWS, 3] x) => (float[ROWS, 3] y)
            {
                y = If <
                    then_branch = a () => (float[ROWS, 3] less) { less = Neg (x) },
                    else_branch = b () => (float[ROWS, 3] size) { size = Abs (x) }
                > (negative)
            }""",
        arrays=lambda random, rows: {
            "negative": np.array(bool(random.integers(2))),
            "x": random.standard_normal((rows, 3), np.float32),
        },
        compute=lambda negative, x: {"y": -x if negative else np.abs(x)},
    )


def doublings() -> Formula:
    """``x`` doubled, as often as a number in the feeds says."""
    return Formula(
        "doublings",
        graph="""g (int64 count, float[ROWS, 3] x) => (float[ROWS, 3] y)
            {
                yes = Constant <value = bool {1}> ()
                y = Loop <
                    body = b (int64 number, bool before, float[ROWS, 3] value) => (bool after, float[ROWS, 3] twice)
                        { after = Identity (before)  twice = Add (value, value) }
                > (count, yes, x)
            }""",
        arrays=lambda random, rows: {
            "count": np.array(random.integers(1, 6)),
            "x": random.standard_normal((rows, 3), np.float32),
        },
        compute=lambda count, x: {"y": x * np.float32(2.0**count)},
    )


def places() -> Formula:
    """Where ``x`` is not zero: as many columns as there are such places."""
    return Formula(
        "places",
        graph="g (float[ROWS, 5] x) => (int64[2, found] y) { y = NonZero (x) }",
        arrays=lambda random, rows: {"x": (random.random((rows, 5)) < random.random()).astype(np.float32)},
        compute=lambda x: {"y": np.array(np.nonzero(x))},
    )


def sums(onnx_type: str, dtype: np.dtype[Any]) -> Formula:
    """Sums of two numbers that only their own type can hold; for fp64, of their products too."""
    product = dtype == np.float64  # which few runtimes have in integers

    def arrays(random: np.random.Generator, rows: int) -> Arrays:
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            halves = {"low": limits.min // 2, "high": limits.max // 2}
            return {name: random.integers(**halves, size=(rows, 8), dtype=dtype, endpoint=True) for name in "xa"}
        return {name: random.standard_normal((rows, 8)).astype(dtype) for name in "xa"}

    return Formula(
        f"sums-{onnx_type}",
        graph=f"""g ({onnx_type}[ROWS, 8] x, {onnx_type}[ROWS, 8] a) =>
            ({onnx_type}[ROWS, 8] y{f", {onnx_type}[ROWS, ROWS] z" if product else ""})
            {{
                y = Add (x, a)
                {"turned = Transpose <perm = [1, 0]> (a)  z = MatMul (x, turned)" if product else ""}
            }}""",
        arrays=arrays,
        compute=lambda x, a: {"y": x + a, **({"z": x @ a.T} if product else {})},
    )


def joined() -> Formula:
    """Columns beside others, and sums over the first ones, of which there may be none."""
    return Formula(
        "joined",
        True,
        2,
        graph="""g (float[ROWS, before] x, float[ROWS, now] a) =>
            (float[ROWS, after] y, float[ROWS] total, float[ROWS, ROWS] product)
            <int64[1] one = {1}>
            {
                y = Concat <axis = 1> (x, a)
                total = ReduceSum <keepdims = 0> (x, one)
                turned = Transpose <perm = [1, 0]> (x)
                product = MatMul (x, turned)
            }""",
        arrays=lambda random, rows: {
            "x": random.standard_normal((rows, 2 * random.integers(2)), np.float32),
            "a": random.standard_normal((rows, 3), np.float32),
        },
        compute=lambda x, a: {"y": np.concatenate([x, a], axis=1), "total": x.sum(axis=1), "product": x @ x.T},
    )


LOOKUPS: Mapping[str, str] = {
    "Gather": "y = Gather (table, sum)",
    "Gather of rows": "picked = Gather (rows, sum)  y = ReduceMax <axes = [1], keepdims = 0> (picked)",
    "GatherElements": "y = GatherElements (table, sum)",
    "GatherND": "places = Unsqueeze (sum, last)  y = GatherND (table, places)",
    "ScatterElements": """rest = ScatterElements (table, sum, zeros)
        taken = Sub (table, rest)  y = Gather (taken, ends)""",
    "ScatterND": """places = Unsqueeze (sum, last)  rest = ScatterND (table, places, zeros)
        taken = Sub (table, rest)  y = Gather (taken, ends)""",
}
"""Lookups at a computed index, which no bound of the inputs protects."""


def lookup(operator: str) -> bytes:
    """A table of five rows, read at ``i + j``."""
    return parsed(f"""<ir_version: {IR_VERSION}, opset_import: ["" : {OPSET}]>
        g (int64[n] i, int64[n] j) => (float[n] y)
        <float[5] table = {{1, 2, 3, 4, 5}}, float[5, 2] rows = {{1, 0, 2, 0, 3, 0, 4, 0, 5, 0}},
         int64[1] last = {{-1}}, float[3] zeros = {{0, 0, 0}}, int64[3] ends = {{0, 4, 4}}>
        {{ sum = Add (i, j)  {LOOKUPS[operator]} }}""")
