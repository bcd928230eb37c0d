"""Construction of fused encoders from a checkpoint's weights."""

from isorun.system.packages import require

require("Building a model from a checkpoint", "onnx_ir", "safetensors")
