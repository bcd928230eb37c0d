"""What ONNX Runtime's CPU provider computes otherwise than ONNX's node tests expect (1.31.1 and 1.32.0)."""

from __future__ import annotations

from isorun.plugin import KnownFaults
from isorun_backends.common_faults import nonzero_of_scalar
from isorun_backends.onnxruntime import (
    attentions,
    empties,
    integers,
    normalizations,
    pads,
    precisions,
    ranges,
    training,
)
from isorun_backends.onnxruntime.row import fault

_ROUNDING = "rounding of fp32: off by 1e-4 where values are 1000"
_FP16 = "rounding of fp16 in the last bit"
_MASK = "the scores that it returns beside the output, `qk_matmul_output`, are finite where they are masked"
_RANDOM = "random numbers of another generator"
_ROUNDED_SIZE = "it scales by the rounded size, as OpenVINO does"

OPTIMIZERS = KnownFaults(rows=(*normalizations.ROWS, *pads.ROWS))
"""What its optimizers change, whatever the provider."""

CPU = KnownFaults(
    rows=(
        nonzero_of_scalar(fault),
        *integers.ROWS,
        *OPTIMIZERS.rows,
        *empties.ROWS,
        *attentions.ROWS,
        *ranges.ROWS,
        *precisions.ROWS,
        *training.ROWS,
    ),
    node_tests={
        "test_attention_4d_causal_fp16": _FP16,
        "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal": _MASK,
        "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal": _MASK,
        **dict.fromkeys(
            (
                *(f"test_dft{kind}{opset}" for kind in ("", "_axis", "_inverse") for opset in ("", "_opset19")),
                *(f"test_dft_{kind}{opset}" for kind in ("irfft", "rfft") for opset in ("", "_opset19")),
                "test_stft",
                "test_stft_with_window",
            ),
            _ROUNDING,
        ),
        "test_maxunpool_export_with_output_shape": "it places the values as in the smaller shape",
        "test_resize_downsample_scales_cubic_align_corners": _ROUNDED_SIZE,
        "test_resize_downsample_scales_linear_align_corners": _ROUNDED_SIZE,
        "test_training_dropout": _RANDOM,
        "test_training_dropout_default": _RANDOM,
        "test_training_dropout_default_mask": _RANDOM,
        "test_training_dropout_mask": _RANDOM,
    },
)
