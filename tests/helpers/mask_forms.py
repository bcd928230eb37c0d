"""A small encoder as given, whose attention reads its mask in one of many ways."""

import numpy as np
import onnx
import onnx.numpy_helper

from onnx_text import graph

VOCABULARY, WIDTH, HEADS = 30, 32, 4
SHAPES = {2: "batch, sequence", 3: "batch, sequence, sequence", 4: "batch, 1, 1, sequence"}

# From the mask to what is added to scores (B, N, S, S): the rank of the mask, and the nodes that compute `bias`.
_BY_KEY = "by_key = Unsqueeze (number, one_two)\n"
_BY_QUERY = "by_key = Unsqueeze (number, one_two)\n by_query = Unsqueeze (number, one_three)\n"
_LOWERED = "left = Sub (unit, allowed)\n bias = Mul (left, lowest)\n"
_CHOSEN = "bias = Where (allowed, zero, lowest)\n"
FORMS: dict[str, tuple[int, str]] = {
    "lowered": (2, _BY_KEY + "allowed = Identity (by_key)\n" + _LOWERED),
    "boolean": (2, _BY_KEY + "allowed = Cast <to = 9> (by_key)\n" + _CHOSEN),
    "positive": (2, _BY_KEY + "allowed = Greater (by_key, zero)\n" + _CHOSEN),
    "product": (2, _BY_QUERY + "allowed = Mul (by_key, by_query)\n" + _LOWERED),
    "segments": (
        2,
        _BY_QUERY + "same = Equal (by_key, by_query)\n real = Cast <to = 9> (by_key)\n"
        "allowed = And (same, real)\n" + _CHOSEN,
    ),
    "blocks": (2, _BY_QUERY + "allowed = Equal (by_key, by_query)\n" + _CHOSEN),
    "inverted": (2, _BY_KEY + "bias = Mul (by_key, lowest)\n"),
    "inverted boolean": (2, _BY_KEY + "masked = Cast <to = 9> (by_key)\n bias = Where (masked, lowest, zero)\n"),
    "inverted comparison": (2, _BY_KEY + "allowed = Equal (by_key, zero)\n" + _CHOSEN),
    "three": (3, "allowed = Unsqueeze (number, one)\n" + _LOWERED),
    "three boolean": (3, "wide = Unsqueeze (number, one)\n allowed = Cast <to = 9> (wide)\n" + _CHOSEN),
    "three inverted": (3, "wide = Unsqueeze (number, one)\n bias = Mul (wide, lowest)\n"),
    "four": (4, "allowed = Identity (number)\n" + _LOWERED),
    "four boolean": (4, "allowed = Cast <to = 9> (number)\n" + _CHOSEN),
    "four inverted": (4, "bias = Mul (number, lowest)\n"),
}


_NORMALIZED = "hidden = LayerNormalization <axis = -1> (residual, gamma, beta)"
_RESIDUALS = {
    "normal": f"residual = Add (attended, normal)\n {_NORMALIZED}",
    "words": f"residual = Add (attended, words)\n {_NORMALIZED}",
    "parallel": """wide = MatMul (normal, o_weight)
        active = Tanh (wide)
        both = Add (active, attended)
        hidden = Add (both, words)""",
}


def model(
    form: str, dtype: str = "int64", shape: str | None = None, *, mean: bool = False, residual: str = "normal"
) -> onnx.ModelProto:
    """The encoder of a form.

    Args:
        form: one of :data:`FORMS`.
        dtype: the mask's element type.
        shape: of the mask; ``None`` for the usual one of its rank.
        mean: whether it has the mean of its tokens, weighted by a mask of rank 2, as another output.
        residual: what is added to the attention's output: ``normal``, or the embeddings, which are not normalized:
            ``words`` (as in mBART, M2M100, Pegasus, Megatron) or ``parallel``, with a feed-forward layer of the same
            input beside the attention (NeoX), and no normalization at the end.
    """
    rank, bias = FORMS[form]
    outputs = f"float[batch, sequence, {WIDTH}] hidden" + (f", float[batch, {WIDTH}] mean" if mean else "")
    pooled = """column = Unsqueeze (number, last)
          weighted = Mul (hidden, column)
          total = ReduceSum <keepdims = 0> (weighted, axis_one)
          count = ReduceSum <keepdims = 1> (number, axis_one)
          mean = Div (total, count)"""
    dense = "\n".join(
        f"""{name}_product = MatMul (normal, {name}_weight)
            {name}_rows = Add ({name}_product, {name}_bias)
            {name}_heads = Reshape ({name}_rows, heads)
            {name} = Transpose <perm = [0, 2, {"3, 1" if name == "k" else "1, 3"}]> ({name}_heads)"""
        for name in "qkv"
    )
    proto = graph(f"""
        encoder (int64[batch, sequence] input_ids, {dtype}[{shape or SHAPES[rank]}] attention_mask) => ({outputs})
        <float unit = {{1}}, float zero = {{0}}, float lowest = {{-3.4028234663852886e+38}}, float scale = {{2.828427}},
         int64[1] one = {{1}}, int64[2] one_two = {{1, 2}}, int64[2] one_three = {{1, 3}}, int64[1] last = {{-1}},
         int64[1] axis_one = {{1}}, int64[4] heads = {{0, 0, {HEADS}, {WIDTH // HEADS}}},
         int64[3] rows = {{0, 0, {WIDTH}}}>
        {{
          number = Cast <to = 1> (attention_mask)
          {bias}
          words = Gather (table, input_ids)
          normal = LayerNormalization <axis = -1> (words, gamma, beta)
          {dense}
          products = MatMul (q, k)
          scaled = Div (products, scale)
          scores = Add (scaled, bias)
          weights = Softmax <axis = -1> (scores)
          values = MatMul (weights, v)
          by_token = Transpose <perm = [0, 2, 1, 3]> (values)
          context = Reshape (by_token, rows)
          product = MatMul (context, o_weight)
          attended = Add (product, o_bias)
          {_RESIDUALS[residual]}
          {pooled if mean else ""}
        }}""")
    random = np.random.default_rng(0)
    shapes = {"table": (VOCABULARY, WIDTH), "gamma": (WIDTH,), "beta": (WIDTH,)}
    shapes |= {f"{name}_weight": (WIDTH, WIDTH) for name in "qkvo"} | {f"{name}_bias": (WIDTH,) for name in "qkvo"}
    for name, size in shapes.items():
        array = (random.standard_normal(size) * 0.5 + (name == "gamma")).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    used = {name for node in proto.graph.node for name in node.input}
    unused = [tensor for tensor in proto.graph.initializer if tensor.name not in used]  # ONNX Runtime warns of them
    for tensor in unused:
        proto.graph.initializer.remove(tensor)
    return proto


def feeds(mask: np.ndarray) -> dict[str, np.ndarray]:
    """Random ids under a mask."""
    ids = np.random.default_rng(mask.size).integers(0, VOCABULARY, (len(mask), mask.shape[-1]))
    return {"input_ids": ids, "attention_mask": mask}
