"""Variants of operators: reductions and normalizations."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from operator_variants import F32, I64, INF, NAN, Variant, X, ints, values, variant

A = np.array


def reductions() -> Iterator[Variant]:
    names = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    spaced = [None, [1], [-1], [0, 2], [-2, -1]]
    for name, opset in product(names, (7, 13, 18)):
        as_input = opset >= (13 if name == "Sum" else 18)
        positive = np.abs(X) + 1
        x = positive if name.startswith("Log") else X
        for axes, keep in product(spaced, (0, 1)):
            if axes is not None and opset < 11 and min(axes) < 0:
                continue
            if as_input:
                for constant in [(), (1,)] if axes is not None else [()]:
                    yield variant(
                        f"Reduce{name}",
                        opset,
                        [x, None if axes is None else ints(*axes)][: 1 + (axes is not None)],
                        constant=constant,
                        keepdims=keep,
                    )
            else:
                yield variant(f"Reduce{name}", opset, [x], keepdims=keep, **({} if axes is None else {"axes": axes}))
        for kind in (
            np.int32,
            np.int64,
            np.float64,
            np.float16,
            *((np.int8, np.uint8) if name in ("Max", "Min") and opset >= 12 else ()),
        ):
            data = (
                values(kind).reshape(3, 4)
                if not name.startswith("Log")
                else (np.abs(values(kind).astype(kind)) + 1).reshape(3, 4).astype(kind)
            )
            attributes: dict[str, Any] = {} if as_input else {"axes": [1]}
            yield variant(
                f"Reduce{name}",
                opset,
                [data, ints(1)] if as_input else [data],
                constant=(1,) if as_input else (),
                **attributes,
            )
        yield variant(f"Reduce{name}", opset, [A(3, F32)])
        yield variant(f"Reduce{name}", opset, [A(3, F32)], keepdims=0)
        empty = np.zeros((2, 0, 3), F32)
        if opset >= 18 and name not in ("Mean",):
            yield variant(f"Reduce{name}", opset, [empty, ints(1)], constant=(1,))
        if as_input:
            for noop in (0, 1):
                yield variant(f"Reduce{name}", opset, [x, ints()], constant=(1,), noop_with_empty_axes=noop)
                yield variant(f"Reduce{name}", opset, [x], noop_with_empty_axes=noop)
    for name in ("Max", "Min"):
        yield variant(f"Reduce{name}", 20, [A([[True, False], [False, False]]), ints(1)], constant=(1,))
        yield variant(f"Reduce{name}", 13, [A([[INF, -INF], [-INF, -INF]], F32)], axes=[1])
        yield variant(f"Reduce{name}", 13, [A([[NAN, 1], [2, 3]], F32)], axes=[1])
    for name in ("LogSumExp", "LogSum", "Sum", "Mean", "L2"):
        opset = 18
        yield variant(
            f"Reduce{name}",
            opset,
            [A([[INF, -INF], [-INF, -INF], [1000, 1000], [INF, 1]], F32), ints(1)],
            constant=(1,),
        )


def extremes() -> Iterator[Variant]:
    ties = A([[2, 1, 2, 1], [1, 1, 1, 1], [0, -3, 4, 4]], F32)
    for name, opset, axis, keep in product(("ArgMax", "ArgMin"), (7, 11, 13), (0, 1, -1), (0, 1)):
        if axis < 0 and opset < 11:
            continue
        for last in (0, 1) if opset >= 12 else (0,):
            extra = {"select_last_index": last} if opset >= 12 else {}
            yield variant(name, opset, [ties], types=[I64], axis=axis, keepdims=keep, **extra)
    for name, kind in product(("ArgMax", "ArgMin"), (np.int32, np.int64, np.int8, np.uint8, np.float64, np.float16)):
        yield variant(name, 13, [values(kind).reshape(3, 4)], types=[I64], axis=1)
    distinct = A([[5, 1, 3, 2], [0, -7, 8, 4]], F32)
    yield variant("TopK", 7, [distinct], outputs=2, types=[F32, I64], k=2)
    yield variant("TopK", 7, [distinct], outputs=2, types=[F32, I64], k=1, axis=0)
    for opset, axis, k, data in product((10, 11), (0, 1, -1), (1, 2), (distinct, ties)):
        if axis < 0 and opset < 11:
            continue
        for largest, ordered in product((0, 1), (1,)) if opset >= 11 else [(None, None)]:
            extra = {} if largest is None else {"largest": largest, "sorted": ordered}
            for constant in ((), (1,)):
                yield variant(
                    "TopK", opset, [data, ints(k)], constant=constant, outputs=2, types=[F32, I64], axis=axis, **extra
                )
    for kind in (np.int32, np.int64, np.float64, np.uint8, np.float16):
        yield variant(
            "TopK",
            24 if kind is np.uint8 else 11,
            [A([5, 1, 3, 9], kind), ints(2)],
            constant=(1,),
            outputs=2,
            types=[kind, I64],
        )
    yield variant("TopK", 11, [distinct, ints(0)], constant=(1,), outputs=2, types=[F32, I64])


def normalizations() -> Iterator[Variant]:
    cube, hard = X / 3, np.round(X / 3)
    for name, opset in product(("Softmax", "LogSoftmax", "Hardmax"), (7, 11, 13)):
        for axis in (None, 0, 1, 2, *((-1, -2) if opset >= 11 else ())):
            extra = {} if axis is None else {"axis": axis}
            yield variant(name, opset, [hard if name == "Hardmax" else cube], **extra)
        yield variant(name, opset, [cube[0]], axis=0)
        yield variant(name, opset, [cube[0, 0]], axis=0)
        yield variant(name, opset, [np.concatenate([cube[:, None], cube[:, None] + 1], 1)], axis=1)
        yield variant(name, opset, [A([[1000, -1000], [3e38, 3e38]], F32)], axis=1)
        if name != "Hardmax":
            yield variant(name, opset, [A([[INF, 1], [-INF, 1], [-INF, -INF]], F32)], axis=1)
        yield variant(name, opset, [np.zeros((0, 3), F32)], axis=1)
        yield variant(name, opset, [cube.astype(np.float64)], axis=1)
    scale, bias = A([1, 2, 0.5, -1], F32), A([0, 1, 2, 3], F32)
    for axis, epsilon, with_bias in product((0, 1, 2, -1, -2), (None, 0.5), (0, 1)):
        shape = X.shape[axis:]
        g, b = (np.resize(v, shape).astype(F32) for v in (scale, bias))
        extra = {} if epsilon is None else {"epsilon": epsilon}
        yield variant("LayerNormalization", 17, [X, g, b][: 2 + with_bias], axis=axis, **extra)
        if with_bias:
            yield variant("LayerNormalization", 17, [X, g, b], outputs=3, axis=axis, **extra)
        else:
            yield variant("RMSNormalization", 23, [X, g], axis=axis, **extra)
    yield variant("LayerNormalization", 17, [X, A([2], F32), A([1], F32)])
    yield variant("LayerNormalization", 17, [X * 0 + 5, scale, bias])
    yield variant("LayerNormalization", 17, [X, scale, bias], outputs=["y0", "", "y2"])
    yield variant("RMSNormalization", 23, [X[0], np.resize(scale, (2, 3, 4)).astype(F32)])
    yield variant("RMSNormalization", 23, [X, A([2], F32)])
    channels = np.resize(X, (2, 4, 3, 2)).astype(F32)
    for groups, epsilon in product((1, 2, 4), (1e-5, 0.5)):
        yield variant("GroupNormalization", 21, [channels, scale, bias], num_groups=groups, epsilon=epsilon)
        yield variant(
            "GroupNormalization", 18, [channels, scale[:groups], bias[:groups]], num_groups=groups, epsilon=epsilon
        )
    for x in (channels, channels[..., 0], np.resize(X, (1, 4, 2, 2, 2)).astype(F32)):
        for epsilon in (1e-5, 0.5):
            yield variant("InstanceNormalization", 6, [x, scale, bias], epsilon=epsilon)
            for opset in (7, 9, 14, 15):
                yield variant("BatchNormalization", opset, [x, scale, bias, bias / 2, np.abs(scale)], epsilon=epsilon)
        for axes in ([0, 2, 3][: x.ndim - 1], [1], [-1]):
            yield variant("MeanVarianceNormalization", 13, [x], axes=axes)
        yield variant("LRN", 13, [x], size=3)
        yield variant("LRN", 13, [x], size=2, alpha=0.5, beta=0.5, bias=2.0)
    yield variant("BatchNormalization", 15, [channels[:, :, 0, 0].copy(), scale, bias, bias / 2, np.abs(scale)])
    yield variant(
        "BatchNormalization", 15, [channels, scale, bias, bias / 2, np.abs(scale)], outputs=3, training_mode=1
    )
    for p, axis in product((1, 2), (0, 1, -1)):
        yield variant("LpNormalization", 1, [X], p=p, axis=axis)
    yield variant("LpNormalization", 1, [np.zeros((2, 3), F32)])
