"""Lowered models: dialects, cache entries, and how often a model is fused."""

import shutil
import threading
import time

import numpy as np
import onnx
import onnx.parser
import pytest

import exports
import isorun
import tiny
from isorun.errors import UnsupportedModel
from isorun.graph.io import files
from isorun.models import checkpoint, lowering
from isorun.models.source import open_model
from isorun.system.cache import Cache, stages
from isorun.types.faults import Fault
from onnx_text import graph

DIALECTS = ("com.microsoft", "onnx", "primitive")
EXPORT = "bert-torchscript17-sdpa"
# Its GELU with a bias could be fused.
PLAIN = """<ir_version: 10, opset_import: ["" : 20]> gelu (float[n,4] x) => (float[n,4] y)
    <float[4,4] w = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}, float[4] b = {1,1,1,1}>
    { p = MatMul (x, w) a = Add (p, b) y = Gelu (a) }"""


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def own(bert, tmp_path):
    """A copy of the model that may be changed."""
    return shutil.copy(bert, tmp_path / "own.onnx")


def lower(path, cache, dialects=DIALECTS):
    return lowering.ModelGraphs(open_model(path, cache), cache).lower(dialects)


def test_models_with_other_weights_have_other_entries(cache, tmp_path):
    lowered = []
    for seed in (0, 1):
        folder = tiny.write_checkpoint(tmp_path / str(seed) / "tiny", tiny.weights(seed=seed))
        checkpoint.build(folder, tmp_path / "model.onnx")
        lowered.append(lower(tmp_path / "model.onnx", cache))
    assert lowered[0].fingerprint != lowered[1].fingerprint
    assert lowered[0].path != lowered[1].path


def test_a_changed_file_is_lowered_again(own, cache):
    first, again = lower(own, cache), lower(own, cache)
    assert (first.cached, again.cached, first.path) == (False, True, again.path)
    model = onnx.load(own)
    largest = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    largest.raw_data = bytes(len(largest.raw_data))
    onnx.save(model, own)
    changed = lower(own, cache)
    assert (changed.cached, changed.path != first.path) == (False, True)


def test_another_version_of_lowering_makes_other_entries(bert, cache, monkeypatch):
    first = lower(bert, cache)
    monkeypatch.setitem(stages.VERSIONS, "lowering", 0)
    second = lower(bert, cache)
    assert (second.cached, second.path != first.path) == (False, True)


def test_the_forms_of_a_model_share_their_weights(bert, tmp_path):
    for dialect in ("onnx", "com.microsoft"):
        for packed in (False, True):
            cache = Cache(tmp_path / "cache")  # another process, which reads the model again
            lowered = lowering.ModelGraphs(open_model(bert, cache), cache).lower((dialect,), packed=packed)
            written = onnx.load(lowered.path)
            assert all(tensor.raw_data or not tensor.dims for tensor in written.graph.initializer)
    folder = lowered.path.parent
    assert len(list(folder.glob("*.onnx"))) == 4
    # Q, K and V are composed for one dialect and not for the other.
    total = sum(path.stat().st_size for path in folder.glob("*.weights.bin"))
    largest = max(path.stat().st_size for path in folder.glob("*.weights.bin"))
    assert total < 1.5 * largest


def test_a_model_that_was_built_shares_its_weights_with_its_forms(checkpoint, cache):
    lowered = [
        lowering.ModelGraphs(open_model(checkpoint, cache), cache).lower(("onnx",), packed=packed)
        for packed in (False, True)
    ]
    assert {form.path.parent.parent.name for form in lowered} == {"built"}
    assert len(list(lowered[0].path.parent.glob("*.onnx"))) == 3
    sizes = [path.stat().st_size for path in lowered[0].path.parent.glob("*.weights.bin")]
    assert sum(sizes) < 1.5 * max(sizes)


@pytest.mark.parametrize("damaged", ["the model", "a form"])
def test_a_damaged_model_is_built_and_lowered_again(checkpoint, cache, damaged):
    source = open_model(checkpoint, cache)
    lowered = lowering.ModelGraphs(source, cache).lower(("onnx",))
    (source.path if damaged == "the model" else lowered.path).write_bytes(b"damaged")
    again = Cache(cache.root)
    source = open_model(checkpoint, again)
    lowered = lowering.ModelGraphs(source, again).lower(("onnx",))
    assert onnx.load(source.path).graph.node
    assert onnx.load(lowered.path).graph.node
    assert open_model(checkpoint, again).path == source.path


def test_uses_the_first_dialect_that_can_express_the_model(bert, cache):
    for order in (DIALECTS, DIALECTS[::-1]):
        assert lower(bert, cache, order).dialect == order[0]
    with pytest.raises(UnsupportedModel, match="no dialect"):
        lower(bert, cache, ())


@pytest.mark.parametrize("kind", ["not an encoder", "no dialect"])
def test_a_model_that_cannot_be_lowered_is_used_as_given(kind, cache, tmp_path):
    path = tmp_path / "model.onnx"
    model = onnx.parser.parse_model(PLAIN).SerializeToString() if kind == "not an encoder" else exports.content(EXPORT)
    path.write_bytes(model)
    lowered = lower(path, cache, DIALECTS if kind == "not an encoder" else ())
    assert (lowered.path, lowered.dialect, lowered.info.fused) == (path, "onnx", {})


def test_the_description_is_cached(bert, cache):
    source = open_model(bert, cache)
    graphs, again = lowering.ModelGraphs(source, cache), lowering.ModelGraphs(source, cache)
    assert (graphs.found, again.found) == (False, True)
    assert graphs.info == again.info
    assert [spec.bounds for spec in again.info.inputs] == [(0, 98), (0, 1), (0, 1)]
    assert again.info.limits == {"batch": None, "sequence": tiny.POSITIONS}


def test_writes_nothing_beside_the_model(own, cache, tmp_path):
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    lower(own, cache)
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != "cache"}
    assert after == before


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:Calibrated on")
@pytest.mark.parametrize(("backend", "precision"), [("ort-cpu", "fp32"), ("ort-cpu", "int8"), ("ort-cpu", "auto")])
def test_opening_fuses_once(backend, precision, tmp_path, caplog):
    """Calibration, lowering, and the packed graph for the first padded batch use one fused graph."""
    samples = None if precision == "fp32" else [exports.given(EXPORT)]
    with (
        caplog.at_level("DEBUG", "isorun.graph.pipeline"),
        isorun.Session(
            exports.content(EXPORT), backend, precision=precision, calibration=samples, cache_dir=tmp_path
        ) as session,
    ):
        assert _fusions(caplog) == 1
        if precision == "fp32":
            session.run(None, padded())
            assert _fusions(caplog) == 1
            assert any(record.getMessage().startswith("remove padding") for record in caplog.records)


def padded() -> exports.Feeds:
    feeds = exports.given(EXPORT, 32)
    feeds["attention_mask"] = np.zeros_like(feeds["attention_mask"])
    feeds["attention_mask"][:, :5] = 1
    return feeds


def _fusions(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.getMessage().startswith("fuse attention") for record in caplog.records)


def always(operator, rewrite=None):
    return Fault(
        operator=operator,
        condition="always",
        result="nothing",
        versions="0",
        applies=lambda node, opset: True,
        rewrite=rewrite,
        model="",
    )


def identity(node):
    import onnx_ir

    return [onnx_ir.node("Identity", [node.inputs[0]])]


def two_nodes(tmp_path):
    path = tmp_path / "two.onnx"
    onnx.save(graph("g (float[N] x) => (float[N] y) { z = Abs (x) y = Neg (z) }"), path)
    return path


def test_rewrites_what_a_runtime_computes_wrongly(tmp_path):
    path, cache = two_nodes(tmp_path), Cache(tmp_path / "cache")

    def lowered(*faults):
        return lowering.ModelGraphs(open_model(path, cache), cache).lower(("onnx",), faults=faults)

    assert lowered().path == lowered(always("Relu")).path == path, "it has no such operator"
    rewritten = lowered(always("Neg", identity))
    assert [node.op_type for node in onnx.load(rewritten.path).graph.node] == ["Abs", "Identity"]
    assert [output.name for output in onnx.load(rewritten.path).graph.output] == ["y"]
    assert rewritten.notes["worked_around"] == ["Neg 'y': always"]
    assert not rewritten.cached
    assert lowered(always("Neg", identity)).cached
    assert lowered().path == path, "another runtime gets the model as given"


def test_refuses_what_a_runtime_computes_wrongly(tmp_path):
    path, cache = two_nodes(tmp_path), Cache(tmp_path / "cache")
    for _ in range(2):  # cached the second time
        with pytest.raises(UnsupportedModel, match=r"'z' \(Abs\).*always: nothing") as caught:
            lowering.ModelGraphs(open_model(path, cache), cache).lower(("onnx",), faults=[always("Abs")])
        assert caught.value.operators == ("Abs",)


def test_rewrites_in_branches_and_functions(tmp_path):
    text = """
        <ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float[N] x, bool c) => (float[N] y) {
            z = If (c) <
                then_branch = a () => (float[N] p) { p = Neg (x) },
                else_branch = b () => (float[N] q) { q = own.f (x) }
            >
            y = Abs (z)
        }
        <domain: "own", opset_import: ["": 17]> f (v) => (w) { w = Neg (v) }
    """
    path, cache = tmp_path / "branches.onnx", Cache(tmp_path / "cache")
    onnx.save(onnx.parser.parse_model(text), path)
    source = open_model(path, cache)
    lowered = lowering.ModelGraphs(source, cache).lower(("onnx",), faults=[always("Neg", identity)])
    assert len(lowered.notes["worked_around"]) == 2
    assert b"Neg" not in lowered.path.read_bytes()


def test_threads_may_lower_and_release_at_once(own, cache, monkeypatch):
    """Runs of two lanes may need the packed graph at once; the first one to finish may free the fused graph."""
    graphs = lowering.ModelGraphs(open_model(own, cache), cache)
    read, others = files.read, []

    def slow(path):
        others.append(threading.Thread(target=graphs.release))
        others[-1].start()
        time.sleep(0.1)
        return read(path)

    monkeypatch.setattr(files, "read", slow)
    lowered = [graphs.lower(DIALECTS, packed=packed) for packed in (False, True)]
    for thread in others:
        thread.join()
    assert others
    assert lowered[0].path != lowered[1].path
