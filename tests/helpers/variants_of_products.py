"""Variants of operators: indices, matrix products, attention and recurrent networks."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from operator_variants import F32, FLOATS, I64, INTEGERS, A, Variant, X, ints, values, variant


def indexing() -> Iterator[Variant]:
    for axis, kind, opset in product((0, 1, -1), (np.int32, np.int64), (7, 11, 13)):
        if axis >= 0 or opset > 7:
            yield variant("Gather", opset, [X, A([[0, 1], [1, 0]], kind)], axis=axis)
            yield variant("Gather", opset, [X, A(1, kind)], axis=axis)
            if opset > 7:
                yield variant("Gather", opset, [X, A([-1, 0], kind)], axis=axis)
                yield variant("Gather", opset, [X, A([-1, 0], kind)], constant=(1,), axis=axis)
                yield variant("Gather", opset, [X, np.zeros(0, kind)], axis=axis)
    for kind in (*INTEGERS, *FLOATS, np.bool_):
        yield variant("Gather", 13, [values(np.int8, 6).astype(kind), ints(-1, 2)])
        yield variant(
            "GatherElements",
            13,
            [values(np.int8, 6).astype(kind).reshape(2, 3), ints(1, 0, 0, -1).reshape(2, 2)],
            axis=1,
        )
        yield variant(
            "ScatterElements",
            16,
            [values(np.int8, 6).astype(kind).reshape(2, 3), ints(1, 0, 0, -1).reshape(2, 2), A([[1, 0], [0, 1]], kind)],
            axis=1,
        )
    for axis in (0, 1, -1):
        yield variant("GatherElements", 11, [X[0], ints(0, 1, 2, 1, 0, -1).reshape(2, 3)], axis=axis)
    for constant in ((), (1,)):
        yield variant("GatherND", 11, [X, ints(0, 1, 1, 2).reshape(2, 2)], constant=constant)
        yield variant("GatherND", 12, [X, ints(1, -1).reshape(2, 1)], constant=constant, batch_dims=1)
        yield variant("GatherND", 12, [X, ints(0, 1, 2, 2, 1, 0).reshape(2, 3, 1)], constant=constant, batch_dims=2)
        yield variant("GatherND", 13, [X, ints(1, 2, -1)], constant=constant)
        yield variant("GatherND", 13, [X, np.zeros((0, 2), I64)], constant=constant)
    data = np.arange(15, dtype=F32).reshape(3, 5) + 1
    index, update = ints(0, 2, 0, 2, -1, 1).reshape(2, 3), A([[10, -20, 30], [2, 3, 4]], F32)
    yield variant("Scatter", 9, [data, np.abs(index), update])
    for opset, axis in product((11, 13, 16, 18), (0, 1, -1)):
        yield variant("ScatterElements", opset, [data, ints(0, 2, 1, 1, -1, 0).reshape(2, 3), update], axis=axis)
    for reduction, kind, axis in product(("add", "mul", "max", "min"), (F32, np.int32, np.int64, np.float64), (0, 1)):
        yield variant(
            "ScatterElements", 18, [data.astype(kind), index, update.astype(kind)], axis=axis, reduction=reduction
        )
        yield variant(
            "ScatterElements",
            18,
            [data.astype(kind), ints(1, 1, 1, 1, 1, 1).reshape(2, 3), update.astype(kind)],
            axis=axis,
            reduction=reduction,
        )
        where = ints(0, 1, 0, 1, 2, -1).reshape(3, 2)
        yield variant("ScatterND", 18, [data.astype(kind), where, A([5, 6, -7], kind)], reduction=reduction)
    yield variant("ScatterND", 11, [data, ints(0, 2).reshape(2, 1), data[:2] * 2])
    yield variant("ScatterND", 16, [data, ints(1, -1).reshape(1, 2), A([9], F32)])
    yield variant("ScatterND", 16, [data, np.zeros((0, 2), I64), A([], F32)])
    for axis, indices, kind in product(
        (-1, 0, 1), (ints(0, 2, -1), ints(0, 5, -5), ints(-2, -3, 1)), (I64, np.int32, F32)
    ):
        yield variant("OneHot", 11, [indices.astype(kind), A(3), A([2, 7], F32)], constant=(1,), types=[F32], axis=axis)
    yield variant("OneHot", 9, [ints(0, 2, 1).reshape(3, 1), A([3]), A([0, 1])], types=[I64])


def products() -> Iterator[Variant]:
    m = values(F32, 120) / 2
    for a, b in (
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 2)),
        ((2, 2, 3), (3, 4)),
        ((2, 3), (2, 3, 4)),
        ((2, 1, 2, 3), (4, 3, 2)),
        ((2, 0), (0, 3)),
        ((0, 3), (3, 2)),
        ((3,), (2, 3, 4)),
    ):
        x, y = np.resize(m, a).astype(F32), np.resize(m[::-1], b).astype(F32)
        for opset in (7, 13):
            yield variant("MatMul", opset, [x, y])
        yield variant("MatMul", 13, [x, y], constant=(1,))
    for kind in (np.int32, np.int64, np.float64, np.float16, np.uint32):
        yield variant("MatMul", 13, [np.resize(values(kind), (2, 3)), np.resize(values(kind), (3, 2))])
    a, b = np.resize(m, (2, 3)).astype(F32), np.resize(m[::-1], (3, 4)).astype(F32)
    for opset, c in product(
        (7, 9, 11, 13), (A(2, F32), A([1, 2, 3, 4], F32), A([[1], [2]], F32), np.ones((2, 4), F32), A([3], F32))
    ):
        yield variant("Gemm", opset, [a, b, c], alpha=0.5, beta=2.0)
    for ta, tb in product((0, 1), (0, 1)):
        yield variant("Gemm", 13, [a.T.copy() if ta else a, b.T.copy() if tb else b], transA=ta, transB=tb)
        yield variant(
            "Gemm",
            13,
            [a.T.copy() if ta else a, b.T.copy() if tb else b],
            constant=(1,),
            transA=ta,
            transB=tb,
            alpha=0.5,
        )
    yield variant("Gemm", 13, [a, b, A([1] * 4, F32)], beta=0.0)
    yield variant("Gemm", 13, [np.ones((2, 3), np.int32), np.ones((3, 2), np.int32)])
    for ka, kb in product((np.uint8, np.int8), (np.uint8, np.int8)):
        x, y = A([[0, 127, 3], [100, 5, 50]], ka), A([[0, 127], [1, 2], [100, 99]], kb)
        za, zb = A(3, ka), A(5, kb)
        for inputs in ([x, y], [x, y, za], [x, y, None, zb], [x, y, za, zb], [x, y, za, A([1, 2], kb)]):
            yield variant("MatMulInteger", 10, inputs, types=[np.int32])
            yield variant(
                "MatMulInteger",
                10,
                inputs,
                types=[np.int32],
                constant=tuple(i for i, v in enumerate(inputs) if i and v is not None),
            )
        for zero in (0, 7):
            fixed = (1, 2, 4, 5, 6, 7)
            yield variant(
                "QLinearMatMul",
                10,
                [x, A(0.1, F32), A(zero, ka), y, A(0.2, F32), A(zero, kb), A(3.0, F32), A(zero, ka)],
                types=[ka],
                constant=fixed,
            )
            yield variant(
                "QLinearMatMul",
                10,
                [x, A(0.1, F32), A(zero, ka), y, A(0.2, F32), A(zero, kb), A(0.5, F32), A(zero, ka)],
                types=[ka],
            )
    for data in ([1, 2, 3.5], [-1, -2, -3.5], [-1, 0, 2.5], [1e-9, 0, 0], [5]):
        yield variant("DynamicQuantizeLinear", 11, [A(data, F32)], outputs=3, types=[np.uint8, F32, np.uint8])
    halves = A([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1000, -1000], F32)
    for kind, opset in product((np.uint8, np.int8, np.int16, np.uint16), (10, 13, 19, 21)):
        if np.dtype(kind).itemsize > 1 and opset < 21:
            continue
        yield variant("QuantizeLinear", opset, [halves, A(1, F32), A(3, kind)], types=[kind], constant=(1, 2))
        yield variant("QuantizeLinear", opset, [halves, A(1, F32), A(3, kind)], types=[kind])
        if opset >= 13:
            for axis in (0, 1, -1):
                size = X.shape[axis]
                yield variant(
                    "QuantizeLinear",
                    opset,
                    [X, np.linspace(0.5, 1, size).astype(F32), np.arange(size).astype(kind)],
                    types=[kind],
                    axis=axis,
                    constant=(1, 2),
                )
                yield variant(
                    "DequantizeLinear",
                    opset,
                    [
                        np.resize(values(kind, 24), (2, 3, 4)),
                        np.linspace(0.5, 1, size).astype(F32),
                        np.arange(size).astype(kind),
                    ],
                    types=[F32],
                    axis=axis,
                    constant=(1, 2),
                )
        yield variant("DequantizeLinear", opset, [values(kind), A(0.5, F32), A(3, kind)], types=[F32])
        yield variant("DequantizeLinear", opset, [values(kind), A(0.5, F32)], types=[F32])
    yield variant("QuantizeLinear", 13, [halves, A(1, F32)], types=[np.uint8])
    yield variant("DequantizeLinear", 13, [A([2**30, -5, 0], np.int32), A(0.5, F32)], types=[F32])
    p, q = np.resize(m, (2, 3, 4)).astype(F32), np.resize(m[::-1], (2, 4, 5)).astype(F32)
    s = np.resize(m, (3, 3)).astype(F32)
    for equation, inputs in (
        ("bij,bjk->bik", [p, q]),
        ("bij,bjk", [p, q]),
        ("...ij,...jk->...ik", [p, q]),
        ("bij->bji", [p]),
        ("ii->i", [s]),
        ("ii", [s]),
        ("ij->", [s]),
        ("i,j->ij", [s[0].copy(), s[1].copy()]),
        ("bij->b", [p]),
        ("i,i->", [s[0].copy(), s[1].copy()]),
        ("bij,kj->bik", [p, q[0].T.copy()]),
        ("ij,jk,kl->il", [s, s, s]),
        ("ab...->ba...", [p]),
        ("bij,bij->bij", [p, p]),
        ("ba", [s]),
        ("...i->...", [p]),
        ("bij,j->bi", [p, q[0, :, 0].copy()]),
    ):
        yield variant("Einsum", 12, inputs, equation=equation)


def attentions() -> Iterator[Variant]:
    random = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(F32)

    q, k, v = array(2, 4, 3, 8), array(2, 4, 5, 8), array(2, 4, 5, 6)
    grouped = array(2, 2, 5, 8), array(2, 2, 5, 6)
    bool_mask = random.random((3, 5)) > 0.4
    bool_mask[:, 0] = True
    for causal, scale, softcap in product((0, 1), (None, 0.3), (0.0, 2.0)):
        extra = {"is_causal": causal, "softcap": softcap, **({} if scale is None else {"scale": scale})}
        for inputs in (
            [q, k, v],
            [q, *grouped],
            [q, k, v, array(3, 5)],
            [q, k, v, bool_mask],
            [q, k, v, array(2, 1, 3, 5)],
            [q, k, v, array(2, 4, 3, 5)],
        ):
            if causal and len(inputs) == 4:
                continue
            yield variant("Attention", 23, inputs, **extra)
            yield variant("Attention", 24, inputs, **extra)
    for mask in (array(1, 5), array(2, 1, 1, 5), bool_mask[:1], array(1, 1, 3, 5), random.random((2, 1, 3, 5)) > -1):
        yield variant("Attention", 23, [q, k, v, mask])
    empty = bool_mask.copy()
    empty[1] = False
    yield variant("Attention", 23, [q, k, v, empty])
    for mode in (0, 1, 2, 3):
        yield variant(
            "Attention",
            23,
            [q, k, v, bool_mask],
            outputs=["y0", "", "", "y3"],
            types=[F32] * 4,
            qk_matmul_output_mode=mode,
            softcap=2.0,
        )
    past = array(2, 4, 2, 8), array(2, 4, 2, 6)
    yield variant("Attention", 23, [q, k, v, None, *past], outputs=3)
    yield variant("Attention", 23, [q, k, v, array(3, 7), *past], outputs=3)
    flat = array(2, 3, 32), array(2, 5, 32), array(2, 5, 24)
    yield variant("Attention", 23, list(flat), q_num_heads=4, kv_num_heads=4)
    yield variant("Attention", 23, [flat[0], array(2, 5, 16), array(2, 5, 12)], q_num_heads=4, kv_num_heads=2)
    yield variant("Attention", 23, [*flat, bool_mask], q_num_heads=4, kv_num_heads=4)
    yield variant("Attention", 24, [q, k, v, None, None, None, ints(5, 3)])
    x, cos, sin = array(2, 4, 3, 8), array(10, 4), array(10, 4)
    ids = ints(0, 1, 2, 5, 6, 9).reshape(2, 3)
    for interleaved in (0, 1):
        yield variant("RotaryEmbedding", 23, [x, cos, sin, ids], interleaved=interleaved)
        yield variant("RotaryEmbedding", 23, [x, array(2, 3, 4), array(2, 3, 4)], interleaved=interleaved)
        yield variant(
            "RotaryEmbedding", 23, [x, array(10, 2), array(10, 2), ids], interleaved=interleaved, rotary_embedding_dim=4
        )
        yield variant("RotaryEmbedding", 23, [array(2, 3, 32), cos, sin, ids], interleaved=interleaved, num_heads=4)
        yield variant(
            "RotaryEmbedding",
            23,
            [array(2, 3, 32), array(10, 2), array(10, 2), ids],
            interleaved=interleaved,
            num_heads=4,
            rotary_embedding_dim=4,
        )
    for name, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        for direction in ("forward", "reverse", "bidirectional"):
            d = 1 + (direction == "bidirectional")
            seq, w, r, b = array(4, 2, 3), array(d, gates * 2, 3), array(d, gates * 2, 2), array(d, gates * 4)
            extra = {"hidden_size": 2, "direction": direction}
            last = [1, 1, 1][: 2 + (name == "LSTM")]
            for inputs in (
                [seq, w, r],
                [seq, w, r, b],
                [seq, w, r, b, A([4, 4], np.int32)],
                [seq, w, r, b, None, array(d, 2, 2)],
            ):
                yield variant(name, 14, inputs, outputs=len(last), **extra)
                yield variant(name, 7, inputs, outputs=["", "y1"], types=[F32, F32], **extra)
            if name == "GRU":
                yield variant(name, 14, [seq, w, r, b], outputs=2, linear_before_reset=1, **extra)
            yield variant(name, 14, [seq, w, r, b], outputs=2, clip=0.3, **extra)
    scores, labels = array(3, 5), ints(0, 4, 2)
    for reduction in ("none", "sum", "mean"):
        yield variant("SoftmaxCrossEntropyLoss", 13, [scores, labels], reduction=reduction)
        yield variant(
            "SoftmaxCrossEntropyLoss",
            13,
            [scores, labels, np.abs(array(5))],
            outputs=2,
            reduction=reduction,
            ignore_index=4,
        )
        yield variant(
            "NegativeLogLikelihoodLoss", 13, [scores, labels, np.abs(array(5))], reduction=reduction, ignore_index=2
        )
    yield variant("Det", 11, [array(2, 3, 3)])
