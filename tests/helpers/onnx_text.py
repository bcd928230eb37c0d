"""Models from ONNX's text form."""

import onnx
import onnx.parser


def graph(text: str) -> onnx.ModelProto:
    """A model of opset 17, without the first line of the text, which is the same everywhere."""
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]>\n{text}')
