"""Variants of operators: arithmetic and casts."""

from collections.abc import Iterator
from itertools import product

import numpy as np
from onnx import TensorProto

from operator_variants import EDGES, F32, FLOATS, I64, INF, INTEGERS, NAN, A, Variant, X, values, variant


def arithmetic() -> Iterator[Variant]:
    for kind in INTEGERS:
        info = np.iinfo(kind)
        signed = info.min < 0
        a = A([7, 7, 5, 100, 0, 1] + ([-7, -7, -1, -100] if signed else [9, 8, 3, 2]), kind)
        b = A([2, 3, 5, 7, 3, 2] + ([2, -2, 3, -7] if signed else [4, 3, 2, 5]), kind)
        for opset in (7, 13, 14):
            if opset < 14 and np.dtype(kind).itemsize < 4:
                continue
            for name in ("Add", "Sub", "Mul", "Div"):
                yield variant(name, opset, [a, b])
        big = A([info.max, info.min, info.max // 2 + 5, 3], kind)
        for name in ("Add", "Sub", "Mul"):
            yield variant(name, 14, [big, A([1, 1, info.max // 2 + 5, 5], kind)])
        yield variant("Sub", 14, [A([0, 3], kind), A([1, 7], kind)])
        for fmod in (0, 1):
            yield variant("Mod", 13, [a, b], fmod=fmod)
        for name in ("Max", "Min"):
            yield variant(name, 13, [a, b])
            yield variant(name, 13, [a[:, None], b[None], A(3, kind)])
        if signed:
            yield variant("Neg", 13, [a])
        for name in ("Abs", "Sign"):
            yield variant(name, 13, [a])
        for name in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"):
            yield variant(name, 16 if name.endswith("OrEqual") else 13, [a, b], types=[np.bool_])
        yield variant(
            "Less", 13, [A([info.max, info.min, 0], kind), A([info.min, info.max, info.max], kind)], types=[np.bool_]
        )
        for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
            yield variant(name, 18, [a, b])
        yield variant("BitwiseNot", 18, [a])
        if not signed:
            for side in ("LEFT", "RIGHT"):
                yield variant("BitShift", 11, [A([1, 255, 3, info.max], kind), A([1, 4, 0, 7], kind)], direction=side)
        if np.dtype(kind).itemsize >= 4 and signed:
            for opset in (12, 13, 15):
                yield variant("Pow", opset, [A([2, -3, 0, 5], kind), A([3, 3, 0, 2], kind)])
                yield variant("Pow", opset, [A([2, 3, 4], kind), A([0.5, 2, -1], F32)])
                yield variant("Pow", opset, [A([2, -3, 1.5], F32), A([3, 2, -2], kind)])
    for kind in FLOATS:
        a, b = A([7.5, -7.5, 7.5, -7.5, 0.0, INF, 3], kind), A([2, 2, -2, -2, 3, 2, INF], kind)
        yield variant("Mod", 13, [a, b], fmod=1)
        for name in ("Add", "Sub", "Mul", "Div", "Pow"):
            yield variant(name, 14 if name != "Pow" else 13, [a, b])
            yield variant(name, 7, [a.reshape(7, 1), b])
        halves = A([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49, 1e6, INF], kind)
        for name in ("Round", "Floor", "Ceil"):
            yield variant(
                name, 13 if name != "Round" else 11, [halves.clip(-1000, 1000) if kind is np.float16 else halves]
            )
    yield variant("Div", 14, [A([1, -1, 0, INF], F32), A([0, 0, 0, INF], F32)])
    yield variant("Pow", 13, [A([-8, 0, 0, -1, NAN, 1, INF], F32), A([1 / 3, 0, -1, 0.5, 0, NAN, -1], F32)])
    safe = A([INF, -INF, 0.0, -0.0, 1.5, -2.5, 0.5, 100, -100, 20], F32)
    for name, opset in {
        "Abs": 13,
        "Acos": 7,
        "Acosh": 9,
        "Asin": 7,
        "Asinh": 9,
        "Atan": 7,
        "Atanh": 9,
        "Ceil": 13,
        "Celu": 12,
        "Cos": 7,
        "Cosh": 9,
        "Elu": 6,
        "Erf": 13,
        "Exp": 13,
        "Floor": 13,
        "Gelu": 20,
        "HardSigmoid": 6,
        "HardSwish": 14,
        "Identity": 13,
        "LeakyRelu": 6,
        "Log": 13,
        "Mish": 18,
        "Neg": 13,
        "Reciprocal": 13,
        "Relu": 13,
        "Round": 11,
        "Selu": 6,
        "Shrink": 9,
        "Sigmoid": 13,
        "Sign": 13,
        "Sin": 7,
        "Sinh": 9,
        "Softplus": 1,
        "Softsign": 1,
        "Sqrt": 13,
        "Tan": 7,
        "Tanh": 13,
        "ThresholdedRelu": 10,
        "Swish": 24,
    }.items():
        trigonometric = name in ("Cos", "Sin", "Tan", "Acos", "Asin", "Atanh", "Acosh")
        yield variant(
            name, opset, [A([0.5, -0.25, 0.0], F32) + (1 if name == "Acosh" else 0)] if trigonometric else [safe]
        )
        yield variant(name, opset, [A(0.5, F32) + A(name == "Acosh", F32)])
        yield variant(name, opset, [np.zeros((0, 3), F32)])
        yield variant(name, opset, [A([NAN, 1.0], F32)])
    yield variant("Gelu", 20, [safe], approximate="tanh")
    for name in ("Log", "Sqrt", "Acos", "Acosh", "Asin", "Atanh"):
        yield variant(name, 13, [A([-1.5 if name[0] != "A" else 0.5, 0.75], F32)])
    for kind in (np.int32, np.int8, np.int64):
        yield variant("Relu", 14, [values(kind)])
        yield variant("PRelu", 16, [values(kind), A([2], kind)])
    for slope in (
        A([0.5], F32),
        A([0.1, 0.2, 0.3, 0.4], F32),
        A([[1], [2], [3]], F32),
    ):
        for opset in (7, 9, 16):
            yield variant("PRelu", opset, [X, slope])
    for positive, negative in product((0, 1), (0, 1)):
        yield variant("IsInf", 10, [EDGES], types=[np.bool_], detect_positive=positive, detect_negative=negative)
    yield variant("IsNaN", 13, [EDGES], types=[np.bool_])
    yield variant("IsNaN", 20, [EDGES.astype(np.float64)], types=[np.bool_])
    for name in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"):
        yield variant(name, 16, [EDGES[:, None], EDGES[None, :8]], types=[np.bool_])
        yield variant(name, 16, [A(1, F32), A([0, 1, 2], F32)], types=[np.bool_])
    yield variant("Equal", 13, [A([True, False]), A([[True], [False]])], types=[np.bool_])
    for name in ("And", "Or", "Xor"):
        yield variant(name, 7, [A([True, False]), A([[True], [False]])])
        yield variant(name, 7, [A(True), A([[True], [False]])])
    yield variant("Not", 1, [A(True)])
    for name in ("Max", "Min", "Sum", "Mean"):
        for opset in (8, 13):
            yield variant(name, opset, [X])
            yield variant(name, opset, [X, X[0], A(1, F32)])
        yield variant(name, 13, [A([NAN, 1, INF], F32), A([1, NAN, -INF], F32)])
    for kind in (*INTEGERS, *FLOATS, np.bool_):
        a, b = values(np.int8, 6).astype(kind).reshape(2, 3), A([3], kind)
        yield variant("Where", 16, [A([[True], [False]]), a, b], types=[kind])
        yield variant("Where", 9, [A(True), a, b], types=[kind])
    yield variant("Where", 9, [A([True, False]), A(NAN, F32), A([[1], [INF]], F32)], types=[F32])
    for opset, kind, exclusive, reverse in product((11, 14), (F32, np.int32, np.int64, np.float64), (0, 1), (0, 1)):
        for axis in (0, -1):
            yield variant(
                "CumSum",
                opset,
                [values(kind).reshape(3, 4), A(axis)],
                constant=(1,),
                exclusive=exclusive,
                reverse=reverse,
            )
    yield variant("CumSum", 14, [X, A(1, np.int32)])


def casts() -> Iterator[Variant]:
    kinds = (np.bool_, *INTEGERS, *FLOATS)
    for source, target, opset in product(kinds, kinds, (9, 19)):
        if opset == 9 and (np.dtype(source).itemsize < 4 or np.dtype(target).itemsize < 4):
            continue
        to = int(
            TensorProto.DataType.Value(
                {"float16": "FLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}.get(
                    np.dtype(target).name, np.dtype(target).name.upper()
                )
            )
        )
        if np.dtype(source).kind == "f":
            low = -3.75 if np.dtype(target).kind != "u" else 0.75
            numbers = A([0, 1, 2.5, 3.5, low, 100.99, 0.25], source)
            yield variant("Cast", opset, [numbers], types=[target], to=to)
            if np.dtype(target).kind in "fb":
                yield variant("Cast", opset, [A([NAN, INF, -INF, -0.0, 65520, 6e4], source)], types=[target], to=to)
        else:
            numbers = A([0, 1, 1, 0]).astype(source) if source is np.bool_ else A([0, 1, 127, 100], source)
            yield variant("Cast", opset, [numbers], types=[target], to=to)
            if source is not np.bool_ and target is not np.bool_:
                info = np.iinfo(source)
                yield variant(
                    "Cast", opset, [A([info.max, info.min, info.max - 1, info.max // 3], source)], types=[target], to=to
                )
                if info.min < 0:
                    yield variant("Cast", opset, [A([-1, -128, -2], source)], types=[target], to=to)
    yield variant("CastLike", 15, [X, A([1], np.int32)], types=[np.int32])
    yield variant("Cast", 13, [A(2.7, F32)], types=[I64], to=7)
    yield variant("Cast", 13, [np.zeros((0, 2), F32)], types=[I64], to=7)
