"""A model whose sums of 8-bit products exceed 16 bits; as a program, what a backend answers to it without VNNI."""

import json
import sys

import numpy as np
import onnx

VALUES = np.abs(np.random.default_rng(0).normal(size=(4, 64))).astype(np.float32) * 2
_WEIGHTS = np.random.default_rng(1).integers(-127, 128, (64, 8)).astype(np.int8)
_WEIGHTS[:, :4] = 127
_SCALE = np.float32(8 / 255)
FORMS = {
    "qdq": (
        "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = DequantizeLinear (w, one) {n} = MatMul (d, v)"
    ),
    "integer": "q = QuantizeLinear (x, s, z) i = MatMulInteger (q, w, z) f = Cast <to = 1> (i) {n} = Mul (f, s)",
}


def model(form: str = "qdq", times: int = 1) -> onnx.ModelProto:
    """The product once, or the sum of two whose nodes read the same weights."""
    body = FORMS[form].format(n="y" if times == 1 else "a")
    if times == 2:
        body += " u = DequantizeLinear (w, one) b = MatMul (d, u) y = Add (a, b)"
    product = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[N, 64] x) => (float[N, 8] y) '
        f"<float s = {{{_SCALE:.9g}}}, uint8 z = {{0}}, float one = {{1}}> {{ {body} }}"
    )
    product.graph.initializer.append(onnx.numpy_helper.from_array(_WEIGHTS, "w"))
    return product


def expected() -> np.ndarray:
    rounded = np.clip(np.rint(VALUES / _SCALE), 0, 255).astype(np.int64)
    return (rounded @ _WEIGHTS.astype(np.int64)).astype(np.float32) * _SCALE


def main(form: str, backend: str) -> None:
    import isorun
    from isorun.system import hardware

    # The emulator shows the flags of the real processor.
    hardware._cpuinfo = lambda: {"model name": "emulated", "flags": "avx2 fma"}
    with isorun.Session(model(form).SerializeToString(), backend) as session:
        print(json.dumps(session.run(None, {"x": VALUES})[0].tolist()))


if __name__ == "__main__":
    main(*sys.argv[1:])
