"""Variants of operators: images."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from operator_variants import F32, I64, A, Variant, ints, values, variant


def images() -> Iterator[Variant]:
    image = np.arange(16, dtype=F32).reshape(1, 1, 4, 4) ** 2 % 13
    scale = A([1, 1, 2, 1.5], F32)
    yield variant("Upsample", 7, [image], mode="nearest", scales=[1.0, 1.0, 2.0, 3.0])
    yield variant("Upsample", 7, [image], mode="linear", scales=[1.0, 1.0, 2.0, 2.0])
    for mode, constant in product(("nearest", "linear"), ((), (1,))):
        yield variant("Upsample", 9, [image, A([1, 1, 2, 3], F32)], constant=constant, mode=mode)
        for ratio in ([1, 1, 2, 1.5], [1, 1, 0.5, 0.75]):
            yield variant("Resize", 10, [image, A(ratio, F32)], constant=constant, mode=mode)
    coordinates = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")
    for opset, mode, coordinate, target in product(
        (11, 13, 19), ("nearest", "linear", "cubic"), coordinates, ("up", "down", "size")
    ):
        if coordinate == "half_pixel_symmetric" and opset < 19:
            continue
        ratio = scale if target == "up" else A([1, 1, 0.5, 0.75], F32)
        empty = np.zeros(0, F32)
        inputs = (
            [image, empty if opset < 13 else None, empty if opset < 13 else None, ints(1, 1, 5, 3)]
            if target == "size"
            else [image, empty if opset < 13 else None, ratio]
        )
        fixed = tuple(i for i, value in enumerate(inputs) if i and value is not None)
        for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil") if mode == "nearest" else (None,):
            extra = {"nearest_mode": rounding} if rounding else {}
            yield variant(
                "Resize", opset, inputs, constant=fixed, mode=mode, coordinate_transformation_mode=coordinate, **extra
            )
    yield variant(
        "Resize",
        13,
        [image, A([0, 0, 0.2, 0.3, 1, 1, 0.8, 1.2], F32), None, ints(1, 1, 3, 3)],
        constant=(1, 3),
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=7.0,
    )
    yield variant("Resize", 13, [image, None, scale], constant=(2,), mode="cubic", cubic_coeff_a=-0.5)
    yield variant("Resize", 18, [image, None, A([2, 1.5], F32)], constant=(2,), mode="linear", axes=[2, 3])
    yield variant("Resize", 18, [image, None, None, ints(3, 5)], constant=(3,), mode="nearest", axes=[3, 2])
    yield variant("Resize", 13, [image.astype(np.uint8), None, scale], constant=(2,), mode="nearest")
    x1, x2, x3 = (
        values(F32, n).reshape(shape) for n, shape in ((14, (1, 2, 7)), (98, (1, 2, 7, 7)), (128, (1, 2, 4, 4, 4)))
    )
    for x, rank in ((x1, 1), (x2, 2), (x3, 3)):
        w = values(F32, 4 * 3**rank).reshape(2, 2, *[3] * rank) / 4
        for extra in (
            {},
            {"pads": [1, 0] * rank},
            {"strides": [2] * rank, "pads": [1] * 2 * rank},
            {"auto_pad": "SAME_UPPER", "strides": [2] * rank},
            {"auto_pad": "SAME_LOWER", "strides": [2] * rank},
            {"auto_pad": "VALID"},
            {"dilations": [2] * rank, "pads": [2] * 2 * rank},
            {"group": 2},
        ):
            weights = w[:, :1].copy() if "group" in extra else w
            yield variant("Conv", 11, [x, weights], constant=(1,), **extra)
            yield variant("Conv", 11, [x, weights, A([1, -1], F32)], **extra)
            if extra.get("auto_pad") != "VALID":
                yield variant("ConvTranspose", 11, [x, weights if "group" in extra else w], constant=(1,), **extra)
        yield variant("ConvTranspose", 11, [x, w], strides=[2] * rank, output_padding=[1] * rank)
        yield variant("ConvTranspose", 11, [x, w], strides=[2] * rank, output_shape=[2 * s + 1 for s in x.shape[2:]])
        for name in ("AveragePool", "MaxPool", "LpPool"):
            k = {"kernel_shape": [3] * rank}
            for extra in (
                {},
                {"strides": [2] * rank},
                {"pads": [1, 0] * rank},
                {"pads": [1] * 2 * rank, "strides": [2] * rank},
                {"auto_pad": "SAME_UPPER", "strides": [2] * rank},
                {"auto_pad": "SAME_LOWER", "strides": [2] * rank},
                {"auto_pad": "VALID"},
                {"ceil_mode": 1, "strides": [2] * rank},
                {"dilations": [2] * rank},
            ):
                opset = {"AveragePool": 22, "MaxPool": 12, "LpPool": 22}[name]
                if name == "LpPool" and "auto_pad" in extra and rank > 1:
                    continue
                yield variant(name, opset, [x], **k, **extra)
                if name == "AveragePool" and "pads" in extra:
                    yield variant(name, opset, [x], count_include_pad=1, **k, **extra)
                    yield variant(name, 7, [x], count_include_pad=1, **k, **extra)
            if name == "AveragePool":
                yield variant(
                    name, 11, [x], ceil_mode=1, strides=[2] * rank, pads=[1] * 2 * rank, count_include_pad=1, **k
                )
                yield variant(name, 11, [x], ceil_mode=1, strides=[2] * rank, pads=[1] * 2 * rank, **k)
        yield variant("MaxPool", 12, [x], outputs=2, types=[F32, I64], kernel_shape=[2] * rank, strides=[2] * rank)
        for name in ("GlobalAveragePool", "GlobalMaxPool"):
            yield variant(name, 1, [x])
        yield variant("GlobalLpPool", 2, [x], p=2)
        yield variant("GlobalLpPool", 2, [x], p=3)
    yield variant("LpPool", 11, [x2], kernel_shape=[2, 2], p=3)
    yield variant("MaxPool", 12, [x2], kernel_shape=[2, 2], pads=[1] * 4, ceil_mode=1)
    yield variant("MaxPool", 12, [values(np.int8, 16).reshape(1, 1, 4, 4)], kernel_shape=[2, 2])
    regions = A([[1, 1, 2, 1], [0, 0, 2, 2], [2, 2, 1, 1]], F32)
    for mode in ("half_pixel", "output_half_pixel"):
        yield variant("RoiAlign", 16, [x2, regions, ints(0, 0, 0)], constant=(1,), coordinate_transformation_mode=mode)
    boxes, scores = A([[[0, 0, 1, width] for width in (1, 2, 1, 3, 4)]], F32), A([[[5, 4, 3, 2, 1]]], F32)
    for threshold, constant in product((0, 0.5, 1), ((2,), (2, 3))):
        inputs = [boxes, scores, ints(9), A([threshold], F32)]
        yield variant("NonMaxSuppression", 11, inputs, constant=constant, types=[I64])
    for mode, pad, align in product(("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)):
        grid = (np.arange(18, dtype=F32).reshape(1, 3, 3, 2) / 7 - 1.21).astype(F32)
        yield variant("GridSample", 20, [image, grid], mode=mode, padding_mode=pad, align_corners=align)
        yield variant(
            "GridSample",
            16,
            [image, grid],
            mode={"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode),
            padding_mode=pad,
            align_corners=align,
        )
