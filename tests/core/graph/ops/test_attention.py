"""Every feature of the fused attention, in every dialect, against the formula in NumPy."""

import numpy as np
import onnx_ir as ir
import pytest

import exports
from isorun.graph.ops import functions, lower

HEADS, SIZE, WIDTH, LENGTH = 4, 8, 24, 11
PROJECTIONS = (("weight", "qkv"), ("bias", "bias"))
TURNS = (("cos", np.cos), ("sin", np.sin))
GAMMAS = ("query_gamma", "key_gamma")
DISTANCES = ("position_keys", "position_queries", "buckets")

CASES = {
    "plain": {},
    "scaled": {"scale": 0.3},
    "rotated": {"turn": SIZE},
    "interleaved": {"turn": SIZE, "interleaved": 1},
    "partly rotated": {"turn": 4, "rotated": 4},
    "partly rotated, interleaved": {"turn": 4, "rotated": 4, "interleaved": 1},
    "grouped": {"groups": 2, "head_size": SIZE},
    "one group, normalized": {"groups": 1, "head_size": SIZE, "turn": SIZE, "norm_epsilon": 1e-6},
    "causal": {"causal": 1},
    "flags that are off": {"causal": 0, "summed": 0, "guarded": 0, "paired": 0},
    "causal, added to the mask": {"causal": 1, "summed": 1},
    "causal, added to the mask, grouped": {"causal": 1, "summed": 1, "groups": 2, "head_size": SIZE},
    "causal, guarded, rotated": {"causal": 1, "guarded": 1, "turn": SIZE},
    "no keys for padding": {"paired": 1},
    "no keys for padding, guarded": {"paired": 1, "guarded": 1},
    "by distance": {"buckets": 3, "scale": 0.2},
    "by distance, no keys for padding": {"buckets": 3, "scale": 0.2, "paired": 1},
    "window": {"window": 2, "turn": SIZE},
    "window of the query alone": {"window": 0},
    "window of the query alone, guarded": {"window": 0, "guarded": 1},
    "window, guarded": {"window": 2, "guarded": 1},
    "window, grouped, normalized": {
        **{"window": 3, "groups": 2, "head_size": SIZE, "turn": SIZE, "norm_epsilon": 1e-6, "scale": 0.2}
    },
}


def rotate(x: np.ndarray, angles: np.ndarray, interleaved: bool) -> np.ndarray:
    size = 2 * angles.shape[-1]
    rest, cos, sin = x[..., size:], np.cos(angles), np.sin(angles)
    if interleaved:
        first, second = x[..., 0:size:2], x[..., 1:size:2]
        turned = np.stack([first * cos - second * sin, second * cos + first * sin], -1).reshape(*x.shape[:-1], size)
    else:
        first, second = x[..., : size // 2], x[..., size // 2 : size]
        turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
    return np.concatenate([turned, rest], -1)


def attention(hidden: np.ndarray, mask: np.ndarray, weights: dict[str, np.ndarray], case: dict) -> np.ndarray:
    groups = case.get("groups", HEADS)
    batch, length, _ = hidden.shape
    product = (hidden @ weights["qkv"] + weights["bias"]).reshape(batch, length, HEADS + 2 * groups, SIZE)
    query, key, value = np.split(product.transpose(0, 2, 1, 3), [HEADS, HEADS + groups], axis=1)
    if "norm_epsilon" in case:
        query, key = (
            x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weights[name]
            for x, name in ((query, "query_gamma"), (key, "key_gamma"))
        )
    if "turn" in case:
        angles = np.arange(length)[:, None] * weights["rates"][: case["turn"] // 2]
        query, key = (rotate(x, angles, "interleaved" in case) for x in (query, key))
    key, value = (np.repeat(x, HEADS // groups, axis=1) for x in (key, value))
    products = query @ key.swapaxes(-1, -2)
    behind = np.arange(length)[:, None] - np.arange(length)
    if "buckets" in case:
        farthest = case["buckets"]
        index = weights["buckets"][np.clip(behind, -farthest, farthest) + farthest]
        keys, queries = (weights[f"position_{part}"].reshape(-1, HEADS, SIZE)[index] for part in ("keys", "queries"))
        products = products + np.einsum("bniw,ijnw->bnij", query, keys) + np.einsum("bnjw,ijnw->bnij", key, queries)
    scores = products * case.get("scale", SIZE**-0.5)
    allowed = (mask[:, None, None, :] != 0) & (np.abs(behind) <= case.get("window", length))
    allowed = allowed & (behind >= (0 if case.get("causal") else -length))
    if case.get("paired"):
        allowed = allowed & (mask[:, None, :, None] != 0)
    scores = np.where(allowed, scores, -1e30)
    if case.get("summed"):
        scores = np.where((mask[:, None, None, :] != 0) | (behind >= 0), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    context = shares / shares.sum(-1, keepdims=True) @ value
    if case.get("guarded"):
        context = np.where(allowed.any(-1, keepdims=True), context, 0)
    return context.transpose(0, 2, 1, 3).reshape(batch, length, -1).astype(np.float32)


def projected(weights: dict[str, np.ndarray], case: dict) -> dict[str, np.ndarray]:
    """The weights, with those of the projections of as many heads as a case has."""
    columns = (HEADS + 2 * case.get("groups", HEADS)) * SIZE
    return {**weights, "qkv": weights["all"][:, :columns], "bias": weights["all_bias"][:columns]}


def graph(weights: dict[str, np.ndarray], *cases: dict) -> ir.Model:
    """One attention for each case, of tables of positions that are longer than a row."""
    initializers: dict[str, ir.Value] = {}

    def constant(name: str, array: np.ndarray) -> ir.Value:
        if name not in initializers:
            tensor = ir.tensor(array)
            kind = ir.TensorType(tensor.dtype)
            initializers[name] = ir.Value(name=name, const_value=tensor, shape=ir.Shape(array.shape), type=kind)
        return initializers[name]

    hidden = ir.Value(name="hidden", shape=ir.Shape(["b", "s", WIDTH]), type=ir.TensorType(ir.DataType.FLOAT))
    mask = ir.Value(name="mask", shape=ir.Shape(["b", "s"]), type=ir.TensorType(ir.DataType.INT64))
    nodes = []
    for number, case in enumerate(cases):
        own, width = projected(weights, case), case.get("turn", 0)
        inputs = {"hidden": hidden, "key_mask": mask}
        inputs |= {f"qkv_{part}": constant(f"{part}_{len(own['bias'])}", own[name]) for part, name in PROJECTIONS}
        if width:
            angles = (np.arange(50)[:, None] * own["rates"][: width // 2]).astype(np.float32)
            inputs |= {label: constant(f"{label}_{width}", make(angles)) for label, make in TURNS}
        if width or "buckets" in case:
            inputs["positions"] = constant("places", np.arange(LENGTH)[None])
        names = GAMMAS if "norm_epsilon" in case else ()
        inputs |= {name: constant(name, own[name]) for name in (*names, *(DISTANCES if "buckets" in case else ()))}
        attributes = {name: value for name, value in case.items() if name not in ("turn", "groups", "buckets")}
        attributes |= {"num_heads": HEADS, "mask_filter_value": functions.LOWEST}
        values = functions.ordered(functions.ATTENTION, inputs)
        nodes.append(ir.node(functions.ATTENTION, values, attributes, domain=functions.DOMAIN))
        output = nodes[-1].outputs[0]
        output.name, output.type = f"context_{number}", ir.TensorType(ir.DataType.FLOAT)
    outputs, used = [node.outputs[0] for node in nodes], list(initializers.values())
    whole = ir.Graph([hidden, mask], outputs, nodes=nodes, initializers=used, opset_imports={"": 17}, name="attention")
    return ir.Model(whole, ir_version=10)


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "rates": 100.0 ** -np.linspace(0, 1, SIZE // 2),
        **{name: random.normal(1, 0.2, SIZE).astype(np.float32) for name in ("query_gamma", "key_gamma")},
        **{
            f"position_{part}": random.normal(size=(5, HEADS * SIZE)).astype(np.float32) for part in ("keys", "queries")
        },
        "buckets": random.integers(0, 5, 7),
        "all": random.normal(size=(WIDTH, 3 * HEADS * SIZE)).astype(np.float32) / 4,
        "all_bias": random.normal(size=3 * HEADS * SIZE).astype(np.float32),
    }


@pytest.fixture(scope="module")
def feeds() -> dict[str, np.ndarray]:
    mask = exports.feeds(["attention_mask"], LENGTH)["attention_mask"]
    return {"hidden": np.random.default_rng(1).normal(size=(*mask.shape, WIDTH)).astype(np.float32), "mask": mask}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dialect", functions.dialects())
@pytest.mark.parametrize("name", CASES)
def test_attention_computes_its_formula(
    weights: dict[str, np.ndarray], feeds: dict[str, np.ndarray], dialect: str, name: str
) -> None:
    case = CASES[name]
    actual = exports.run(lower.lower(graph(weights, case), dialect), feeds)
    assert (
        exports.difference([attention(feeds["hidden"], feeds["mask"], projected(weights, case), case)], actual) < 2e-5
    )


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dialect", functions.dialects())
@pytest.mark.parametrize("reverse", [False, True])
def test_layers_with_different_features_in_one_graph(
    weights: dict[str, np.ndarray], feeds: dict[str, np.ndarray], dialect: str, reverse: bool
) -> None:
    """The body for one layer's features does not answer for another layer, whichever comes first."""
    cases = list(CASES.values())[:: -1 if reverse else 1]
    expected = [attention(feeds["hidden"], feeds["mask"], projected(weights, case), case) for case in cases]
    assert exports.difference(expected, exports.run(lower.lower(graph(weights, *cases), dialect), feeds)) < 2e-5
