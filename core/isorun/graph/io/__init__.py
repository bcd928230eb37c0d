"""Reading and writing ONNX files."""

from isorun.system.packages import require

require("Reading a model", "onnx", "onnx_ir")
