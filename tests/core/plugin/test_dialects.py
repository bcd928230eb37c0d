"""What a plugin may get in the place of the fused operators: a variant of a dialect, the fused graph, `primitive`."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.external_data_helper
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import backends
import isorun
import tiny
from isorun.errors import InvalidArgument
from isorun.graph.ops import compose, functions
from isorun.models import lowering
from isorun.models.source import open_model
from isorun.plugin import Capabilities, Dialect, Executable, RuntimeReport, fused
from isorun.system.cache import Cache
from isorun.types import DIALECTS
from isorun_conformance import fakes
from isorun_conformance.sample_models import LATER, encoder

GELU = """
opset_import: ["" : 17, "my.engine" : 1, "isorun.fused" : 1]

BiasGelu (input, bias) => (output)
{
  output = my.engine.BiasGelu (input, bias)
}
"""


class BiasGelu(OpRun):
    """The engine's kernel."""

    op_domain = "my.engine"

    def _run(self, x, bias):
        from math import erf

        total = (x + bias).astype(np.float64)
        return ((total * (1 + np.vectorize(erf)(total / np.sqrt(2))) / 2).astype(x.dtype),)


class Engine(Executable):
    """Runs a model and reports its operators."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._evaluator = ReferenceEvaluator(proto, new_ops=[BiasGelu])
        self._operators = Counter(f"{node.domain}.{node.op_type}".lstrip(".") for node in proto.graph.node)

    def run(self, output_names, feeds):
        return self._evaluator.run(list(output_names), dict(feeds))

    def report(self):
        return RuntimeReport("numpy", "fp32", {"numpy": dict(self._operators)}, {})


class Variant(fakes.Right):
    capabilities = Capabilities(dialects=(Dialect("my-engine", functions=GELU), "primitive"), dynamic_shapes=True)

    def compile(self, model, config):
        return Engine(onnx.load(model.path))


class Misspelt(Variant):
    capabilities = Capabilities(
        dialects=(Dialect("my-engine", functions=GELU.replace("my.engine.Bias", "isorun.fused.Bais")), "primitive"),
        dynamic_shapes=True,
    )


class Fused(Variant):
    capabilities = Capabilities(dialects=("fused",), dynamic_shapes=True)

    def compile(self, model, config):
        graph = fused.read(model.path)
        assert sum(node.op_type == fused.ATTENTION for node in graph.graph if fused.is_fused(node)) == 2
        content = fused.serialized(fused.lower(graph, "primitive", [GELU]), model.path.parent)
        proto = onnx.load_from_string(content)
        onnx.external_data_helper.load_external_data_for_model(proto, str(model.path.parent))
        return Engine(proto)


@pytest.fixture(autouse=True)
def plugins() -> Iterator[None]:
    with backends.registered(**{"variant": Variant, "misspelt": Misspelt, "on-fused": Fused}):
        yield


@pytest.mark.parametrize(
    ("name", "dialect", "padding"),
    [("variant", "my-engine", "keep"), ("variant", "my-engine", "remove"), ("on-fused", "fused", "keep")],
)
def test_engine_with_its_own_operator(bert, name, dialect, padding):
    feeds = tiny.feeds(kind="holes")
    with isorun.Session(bert, "reference", padding=padding) as reference:
        expected = reference.run(None, feeds)
    with isorun.Session(bert, name, padding=padding) as session:
        for output, wanted in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(output, wanted, atol=2e-6)
        provenance = session.provenance
    assert provenance.dialect == dialect
    assert provenance.operators["numpy"]["my.engine.BiasGelu"] == 2
    assert "Erf" not in provenance.operators["numpy"]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("BiasGelu (input", "BiasGelu input", "no function"),
        ("=> (output)", "=> output", "function BiasGelu: .*ParseError"),
        ("BiasGelu (input", "BiasGellu (input", "nothing calls it.*BiasGelu"),
        ("input, bias", "value, bias", "among input, bias, got value"),
        ("my.engine.BiasGelu", "my.engine.BiasGelu <scale: float = @scal>", "no attribute 'scal'"),
        ("my.engine.BiasGelu", "isorun.fused.BiasGellu", "no function 'BiasGellu'.*BiasGelu"),
        ("my.engine.BiasGelu", "isorun.optional.Earf", "no function or operator 'Earf'"),
        ("my.engine.BiasGelu", "our.engine.BiasGelu", "no opset_import for the domain 'our.engine'"),
        ("opset_import: [", "[", "no header"),
    ],
)
def test_functions_that_cannot_be_used_are_an_error_about_them(bert, tmp_path, old, new, named):
    dialect = Dialect("my-engine", functions=GELU.replace(old, new))
    with pytest.raises(InvalidArgument, match=f"functions of the dialect 'my-engine' cannot be used: .*{named}"):
        lowering.ModelGraphs(open_model(bert, Cache(tmp_path)), Cache(tmp_path)).lower((dialect,))


def test_functions_that_cannot_be_used_are_not_passed_over_for_another_dialect(bert):
    with pytest.raises(InvalidArgument, match="functions of the dialect 'my-engine' cannot be used"):
        isorun.Session(bert, "misspelt")


def test_lower_rejects_an_unknown_dialect(bert, tmp_path):
    with pytest.raises(InvalidArgument, match="Unknown dialect 'latin'"):
        lowering.ModelGraphs(open_model(bert, Cache(tmp_path)), Cache(tmp_path)).lower(("latin",))


def test_known_dialects_are_those_with_a_file():
    assert {*DIALECTS} == {*functions.dialects(), functions.FUSED}


PAGE = (Path(__file__).parents[3] / "docs" / "dialects.md").read_text(encoding="utf-8")
FOLDED = {"CastLike", "Constant", "Identity"}


def documented(title: str) -> set[str]:
    (line,) = re.findall(rf"^\| {title} \| (.*) \|$", PAGE, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", line))


def operators(*texts: str, packed: bool) -> set[str]:
    """The ONNX operators in the functions of some texts, those of packed graphs or the others."""
    parsed = [function for text in texts for function in compose.parse(functions._text(text)).values()]
    own = {function.name for function in parsed}
    nodes = [node for function in parsed if function.name.startswith("Packed") == packed for node in function.node]
    return {node.op_type for node in nodes if node.domain != functions.DOMAIN} - own - FOLDED


def test_operators_of_primitive_are_documented():
    texts = ("primitive", "half/primitive", "../padding")
    always = operators(*texts, packed=False)
    assert documented("always") == always
    assert documented("padding removed") == operators(*texts, packed=True) - always


BESIDE = {"Range", "Slice", "Squeeze", "Identity"}  # outside the fused operators


def test_operators_of_the_encoders_of_the_conformance_checks_are_documented(tmp_path):
    cache, needed = Cache(tmp_path), set()
    for name in LATER:
        path = encoder(name, dynamic=True).path(tmp_path)
        lowered = lowering.ModelGraphs(open_model(path, cache), cache).lower(("primitive",))
        needed |= {node.op_type for node in onnx.load(lowered.path).graph.node}
    known = documented("always") | documented("padding removed") | BESIDE
    assert needed - known == documented("rotary positions, windows, disentangled attention")


@pytest.mark.parametrize("packed", [False, True])
def test_primitive_is_folded(bert, tmp_path, packed):
    cache = Cache(tmp_path)
    lowered = lowering.ModelGraphs(open_model(bert, cache), cache).lower(("primitive",), packed=packed)
    graph = onnx.load(lowered.path).graph
    constants = {tensor.name for tensor in graph.initializer}
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        assert node.op_type not in FOLDED or (node.op_type == "Identity" and {*node.output} <= outputs)
        assert not {*node.input} <= constants, f"{node.op_type} {node.name} could be folded"
    known = documented("always") | BESIDE | (documented("padding removed") if packed else set())
    assert {node.op_type for node in graph.node} <= known
