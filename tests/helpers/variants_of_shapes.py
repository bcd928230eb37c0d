"""Variants of operators: shapes, slices and padding."""

from collections.abc import Iterator
from itertools import product

import numpy as np
from onnx import TensorProto

from operator_variants import F32, FLOATS, I64, INF, INTEGERS, NAN, Variant, X, ints, values, variant

A = np.array


def shapes() -> Iterator[Variant]:
    for opset in (7, 11, 12):
        for axes in [[0], [0, 3], *([[-1]] if opset >= 11 else [])]:
            yield variant("Squeeze", opset, [X.reshape(1, 6, 4, 1)], axes=axes)
            yield variant("Unsqueeze", opset, [X], axes=axes)
        yield variant("Squeeze", opset, [X.reshape(1, 6, 4, 1)])
        yield variant("Unsqueeze", opset, [A(3, F32)], axes=[0])
        yield variant("Squeeze", opset, [A([3], F32)], axes=[0])
    for opset, constant in product((13,), ((), (1,))):
        for axes in ((0,), (0, 3), (-1,), (0, -1), (3, 0)):
            yield variant("Squeeze", opset, [X.reshape(1, 6, 4, 1), ints(*axes)], constant=constant)
            yield variant("Unsqueeze", opset, [X, ints(*axes)], constant=constant)
        yield variant("Unsqueeze", opset, [A(3, F32), ints(0)], constant=constant)
        yield variant("Unsqueeze", opset, [A(3, F32), ints(0, 1)], constant=constant)
        yield variant("Unsqueeze", opset, [np.zeros((0, 2), F32), ints(1)], constant=constant)
    yield variant("Squeeze", 13, [X.reshape(1, 6, 4, 1)])
    for axis in (0, 1, 2, 3, -1):
        for opset in (7, 11, 13):
            if axis >= 0 or opset > 7:
                yield variant("Flatten", opset, [X], axis=axis)
    yield variant(
        "Flatten",
        13,
        [
            A([1, 2], F32),
        ],
        axis=0,
    )
    for constant in ((), (1,)):
        for target in ((0, -1), (4, 0, -1), (-1,), (24,), (2, 3, 2, 2)):
            yield variant("Reshape", 13, [X, ints(*target)], constant=constant)
        yield variant("Reshape", 13, [A([3], F32), ints()], constant=constant)
        yield variant("Reshape", 14, [np.zeros((0, 3), F32), ints(3, 0)], constant=constant, allowzero=1)
        yield variant("Reshape", 14, [np.zeros((0, 3), F32), ints(0, 3)], constant=constant)
        for target in ((2, 3, 4), (1,), (5, 1, 1, 1), (3, 1), ()):
            yield variant("Expand", 13, [X, ints(*target)], constant=constant)
        yield variant("Expand", 13, [A(3, F32), ints(2, 2)], constant=constant)
        yield variant("Expand", 13, [A(3, F32), ints()], constant=constant)
        yield variant("Expand", 13, [np.zeros((1, 0), F32), ints(3, 0)], constant=constant)
        yield variant("Expand", 13, [np.zeros((2, 1), F32), ints(2, 0)], constant=constant)
        for repeats in ((1, 2, 1), (2, 1, 3), (1, 0, 1)):
            yield variant("Tile", 13, [X, ints(*repeats)], constant=constant)
        yield variant("ConstantOfShape", 9, [ints(2, 3)], constant=(0,) if constant else (), types=[F32])
        yield variant("ConstantOfShape", 9, [ints()], constant=(0,) if constant else (), types=[F32])
        yield variant("ConstantOfShape", 9, [ints(0, 2)], constant=(0,) if constant else (), types=[F32])
    yield variant("Transpose", 13, [X])
    yield variant("Transpose", 13, [X], perm=[1, 0, 2])
    yield variant("Transpose", 13, [A(3, F32)])
    for extra in ({}, {"start": 1}, {"start": -2}, {"end": -1}, {"start": -9, "end": 9}, {"start": 2, "end": 1}):
        yield variant("Shape", 15, [X], types=[I64], **extra)
    yield variant("Shape", 15, [A(3, F32)], types=[I64])
    yield variant("Size", 13, [X], types=[I64])
    yield variant("Size", 13, [A(3, F32)], types=[I64])
    yield variant("Size", 13, [np.zeros((0, 3), F32)], types=[I64])
    for axis in (0, -1):
        yield variant("Concat", 13, [X, X], axis=axis)
    yield variant("Concat", 13, [X, np.zeros((2, 0, 4), F32)], axis=1)
    yield variant("Concat", 13, [X], axis=1)
    yield variant("Identity", 14, [A(3, F32)])
    for mode, opset in product(("DCR", "CRD"), (11, 13)):
        yield variant("DepthToSpace", opset, [np.arange(32, dtype=F32).reshape(1, 8, 2, 2)], blocksize=2, mode=mode)
    yield variant("SpaceToDepth", 13, [np.arange(32, dtype=F32).reshape(1, 2, 4, 4)], blocksize=2)
    for kind in (F32, np.int64, np.bool_):
        for data in (A(1, kind), A(0, kind), A([[0, 1], [1, 0]], kind), np.zeros((0, 2), kind), np.zeros((2, 2), kind)):
            yield variant("NonZero", 13, [data], types=[I64])
    yield variant("NonZero", 13, [A([NAN, 0, -0.0, INF], F32)], types=[I64])
    for k, upper, data in product((None, 0, 1, -1, 5, -5), (0, 1), (X, X.astype(np.int64), X > 0, X.astype(np.int32))):
        if data is X or k in (None, 1):
            yield variant(
                "Trilu",
                14,
                [data, None if k is None else A(k)][: 1 + (k is not None)],
                constant=() if k is None else (1,),
                upper=upper,
            )
    yield variant("Trilu", 14, [X, A(1)])
    yield variant("Trilu", 14, [np.zeros((2, 0, 3), F32)])
    yield variant("Trilu", 14, [A([[INF, NAN], [NAN, INF]], F32)])
    for kind, span in product(
        (F32, np.int32, np.int64, np.float64, np.int16), ((5, 0, -2), (0, 5, 2), (0, 5, -1), (3, 3, 1), (-3, 4, 3))
    ):
        yield variant("Range", 11, [A(number, kind) for number in span])
    yield variant("Range", 11, [A(0, F32), A(1, F32), A(0.1, F32)])
    yield variant("EyeLike", 9, [np.zeros((3, 4), F32)], k=1)
    yield variant("EyeLike", 9, [np.zeros((3, 4), np.int32)], k=-1, dtype=TensorProto.INT64, types=[I64])


def slices() -> Iterator[Variant]:
    huge = 2**63 - 1
    spans = [
        ([1], [3], [2]),
        ([0, 1], [1, 3], [0, 2]),
        ([-2], [huge], [1]),
        ([0], [-1], [2]),
        ([2], [1], [1]),
        ([-100], [100], [2]),
    ]
    for starts, ends, axes in spans:
        yield variant("Slice", 7, [X], starts=starts, ends=ends, axes=axes)
        for opset, constant in product((10, 11, 13), ((), (1, 2, 3))):
            yield variant("Slice", opset, [X, ints(*starts), ints(*ends), ints(*axes)], constant=constant)
    yield variant("Slice", 7, [X], starts=[0, 1], ends=[1, 3])
    for starts, ends, axes, steps in [
        ([3], [0], [2], [-1]),
        ([-1], [-5], [-1], [-2]),
        ([huge], [-huge], [2], [-1]),
        ([0], [huge], [2], [3]),
        ([-1], [-(2**31)], [1], [-1]),
        ([0], [2**31 - 1], [1], [2]),
        ([3, 2], [0, 0], [2, 1], [-1, -1]),
        ([-9], [-9], [2], [-1]),
    ]:
        for constant in ((), (1, 2, 3, 4)):
            yield variant("Slice", 13, [X, ints(*starts), ints(*ends), ints(*axes), ints(*steps)], constant=constant)
    yield variant("Slice", 13, [X, ints(0, 1), ints(1, 3)])
    yield variant("Slice", 13, [X, ints(0, 2, 3), ints(2, 0, 0), None, ints(1, -1, -2)])
    yield variant("Slice", 13, [X, A([1], np.int32), A([3], np.int32), A([1], np.int32)])
    wide = np.arange(14, dtype=F32).reshape(2, 7)
    for opset in (7, 11):
        yield variant("Split", opset, [wide], outputs=2, axis=1, split=[3, 4])
        yield variant("Split", opset, [wide], outputs=2, axis=0)
    yield variant("Split", 11, [wide], outputs=3, axis=-1, split=[2, 0, 5])
    for opset, constant in product((13, 18), ((), (1,))):
        yield variant("Split", opset, [wide, ints(3, 4)], constant=constant, outputs=2, axis=1)
        yield variant("Split", opset, [wide, ints(2, 0, 5)], constant=constant, outputs=3, axis=-1)
    yield variant("Split", 13, [wide], outputs=2, axis=0)
    for count in (2, 3, 4, 7):
        yield variant("Split", 18, [wide], outputs=count, axis=1, num_outputs=count)
    for kind, opset in product(FLOATS, (7, 11, 13)):
        data, value = values(kind).reshape(3, 4), {"value": 1.5}
        for mode, pads in (
            ("constant", [1, 0, 0, 2]),
            ("constant", [-1, 1, 0, -2]),
            ("reflect", [1, 2, 1, 3]),
            ("edge", [2, 0, 0, 3]),
        ):
            if opset < 11:
                yield variant("Pad", opset, [data], mode=mode, pads=pads, **value)
            else:
                for constant in ((), (1,)):
                    yield variant("Pad", opset, [data, ints(*pads)], constant=constant, mode=mode)
                yield variant("Pad", opset, [data, ints(*pads), A(1.5, kind)], constant=(1,), mode=mode)
    for kind in (*INTEGERS, np.bool_):
        yield variant(
            "Pad", 13, [values(np.int8).astype(kind).reshape(3, 4), ints(1, 0, 0, 2), A(1, kind)], constant=(1,)
        )
    for axes in ((1,), (-1,)):
        yield variant("Pad", 18, [X, ints(1, 2), None, ints(*axes)], constant=(1, 3))
        yield variant("Pad", 18, [X, ints(1, 2), A(9, F32), ints(*axes)], constant=(1, 3))
        yield variant("Pad", 18, [X, ints(1, 2), None, ints(*axes)], constant=(1, 3), mode="reflect")
    yield variant("Pad", 19, [X, ints(0, 1, 2, 0, 1, 1)], constant=(1,), mode="wrap")
    yield variant("Pad", 13, [A(3, F32), ints()], constant=(1,))
    yield variant("Pad", 13, [np.zeros((0, 2), F32), ints(1, 0, 0, 0)], constant=(1,))
    yield variant("Clip", 6, [X], min=-1.0, max=2.0)
    yield variant("Clip", 7, [X], max=2.0)
    yield variant("Clip", 10, [X], min=-1.0)
    yield variant("Clip", 6, [X])
    for opset, kind in product((11, 13), (F32, np.float64, np.int8, np.uint8, np.int32, np.int64, np.uint64)):
        if opset == 11 and np.dtype(kind).kind != "f":
            continue
        low, high, data = A(1, kind), A(3, kind), values(kind)
        for extra, constant in product(([], [low], [None, high], [low, high], [high, low]), ((), "all")):
            fixed = tuple(1 + i for i, value in enumerate(extra) if value is not None) if constant else ()
            yield variant("Clip", opset, [data, *extra], constant=fixed)
    for opset in (7, 10):
        yield variant("Dropout", opset, [X], ratio=0.5)
    for opset in (12, 13, 22):
        yield variant("Dropout", opset, [X])
        yield variant("Dropout", opset, [X], outputs=2, types=[F32, np.bool_])
        yield variant("Dropout", opset, [X, A(0.5, F32)], constant=(1,), outputs=2, types=[F32, np.bool_])
        yield variant("Dropout", opset, [X, A(0.5, F32), A(False)], constant=(1, 2))
        yield variant("Dropout", opset, [X, A(0.0, F32), A(True)], constant=(1, 2))
    yield variant("Compress", 11, [X, A([True, False, True])], axis=-2)
    yield variant("Compress", 11, [X, A([True, False, True])])
    yield variant("CenterCropPad", 18, [X, ints(4, 2)], constant=(1,), axes=[1, -1])
    yield variant("ReverseSequence", 10, [X.transpose(1, 0, 2).copy(), ints(1, 3)], time_axis=0, batch_axis=1)
    yield variant("ReverseSequence", 10, [X, ints(3, 2)], time_axis=1, batch_axis=0)
    for axis in (None, 0, -1):
        extra = {} if axis is None else {"axis": axis}
        for ordered in (0, 1):
            yield variant(
                "Unique",
                11,
                [A([[2, 1, 1], [2, 1, 1], [0, 3, 3]], F32)],
                outputs=4,
                types=[F32, I64, I64, I64],
                sorted=ordered,
                **extra,
            )
