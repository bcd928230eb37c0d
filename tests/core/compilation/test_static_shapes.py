"""Sessions on a backend that compiles one shape at a time."""

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import isorun
import small_bert
import static_engine
from bindings import bound
from isorun.errors import BackendFailed, InvalidFeeds, UnsupportedModel
from isorun.graph.io import files
from isorun.parity.samples import MASKS
from isorun.plugin import StaticShapes
from isorun_conformance.sample_models import SUM, parsed
from static_engine import SMALL

LAST_ROW_SCALED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[rows, 3] x) => (float[rows, 3] y) {
  largest = ReduceMax <axes = [0], keepdims = 1> (x)
  y = Div (x, largest)
}"""
IMAGE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, 1, height, width] x) => (float[batch, 1, height, width] y) { y = Relu (x) }"""


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return small_bert.write(tmp_path_factory.mktemp("static") / "bert.onnx")


@pytest.fixture(scope="module")
def expected(bert):
    """What ONNX Runtime computes without rounding."""
    with isorun.Session(bert, "ort-cpu", padding="keep") as session:
        yield lambda feeds: session.run(None, feeds)


@pytest.fixture(scope="module")
def session(bert):
    with static_engine.registered(name="static-shared"), isorun.Session(bert, "static-shared") as session:
        yield session


def feeds(batch: int, length: int, kind: str = "right", seed: int = 0) -> dict[str, np.ndarray]:
    mask = MASKS[kind](batch, length, np.random.default_rng([batch, length, seed]))
    return small_bert.feeds(mask, seed)


def assert_equal(results, wanted):
    for result, right in zip(results, wanted, strict=True):
        assert result.shape == right.shape
        assert result.flags.c_contiguous
        np.testing.assert_allclose(result, right, atol=2e-5, rtol=1e-4)


def shapes(session) -> list[str]:
    return list(session.provenance.details["static_shapes"]["compiled"])


@given(batch=st.integers(1, 9), length=st.integers(1, 64), kind=st.sampled_from(sorted(MASKS)), seed=st.integers(0, 9))
@example(batch=1, length=64, kind="none", seed=0)
@example(batch=9, length=33, kind="masked-row", seed=0)
@example(batch=1, length=7, kind="masked-row", seed=0)
@example(batch=4, length=16, kind="masked-row", seed=0)
@settings(max_examples=20)
def test_results_are_those_of_any_shape(session, expected, batch, length, kind, seed):
    request = feeds(batch, length, kind, seed)
    assert_equal(session.run(None, request), expected(request))


def test_rounds_to_the_declared_sizes(bert, expected):
    with static_engine.registered() as engine, isorun.Session(bert, "static") as session:
        for batch, length in ((1, 3), (1, 8), (3, 9), (4, 16), (2, 12)):
            assert_equal(session.run(None, feeds(batch, length)), expected(feeds(batch, length)))
        assert shapes(session) == ["1x8", "4x16"]
        assert [shape[0] for shape in engine.compiled] == [(1, 8), (4, 16)]
    assert engine.alive == 0


def test_rounds_lengths_above_the_largest_up_to_the_limit_of_the_model(bert):
    with static_engine.registered(replace(SMALL, lengths=(8, 24))), isorun.Session(bert, "static") as session:
        session.run(None, feeds(1, 40))
        session.run(None, feeds(1, 60))
        assert shapes(session) == ["1x8", "1x48", "1x64"]


def test_splits_batches_above_the_largest(bert, expected):
    with static_engine.registered() as engine, isorun.Session(bert, "static") as session:
        assert_equal(session.run(["pooler_output"], feeds(9, 5)), expected(feeds(9, 5))[1:])
        assert [shape[0] for shape in engine.compiled] == [(1, 8), (4, 8)]


def test_fully_masked_rows_run_in_their_own_length(bert, expected):
    with static_engine.registered() as engine, isorun.Session(bert, "static") as session:
        request = feeds(3, 5, "right")
        request["attention_mask"][[0, 2]] = [[0], [0]]
        assert_equal(session.run(None, request), expected(request))
        assert [shape[0] for shape in engine.compiled] == [(1, 8), (4, 5)]


def test_full_uses_the_nearest_larger_executable(bert, expected):
    with static_engine.registered(replace(SMALL, executables=3)) as engine, isorun.Session(bert, "static") as session:
        for batch, length in ((4, 32), (4, 16)):
            session.run(None, feeds(batch, length, "none"))
        assert_equal(session.run(None, feeds(1, 12)), expected(feeds(1, 12)))
        assert [shape[0] for shape in engine.compiled] == [(1, 8), (4, 32), (4, 16)]
        assert session.provenance.details["static_shapes"]["evicted"] == 0


def test_full_evicts_the_least_recently_used_with_one_warning(bert, expected, caplog):
    with static_engine.registered(replace(SMALL, executables=2)) as engine, isorun.Session(bert, "static") as session:
        for length in (8, 16, 32, 40, 64):
            assert_equal(session.run(None, feeds(1, length)), expected(feeds(1, length)))
        assert shapes(session) == ["1x32", "1x64"]
        assert session.provenance.details["static_shapes"]["evicted"] == 2
    assert engine.most == 2
    assert engine.alive == 0
    assert [record.getMessage().partition(" was closed")[0] for record in caplog.records] == [
        "static: the executable for 1x8"
    ]


def test_bound_holds_with_concurrent_requests(bert, expected):
    requests = [feeds(batch, length) for batch in (1, 5) for length in (3, 15, 20, 33, 64)]
    with static_engine.registered(replace(SMALL, executables=2)) as engine, isorun.Session(bert, "static") as session:
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda request: session.run(None, request), requests * 4))
        for request, result in zip(requests * 4, results, strict=True):
            assert_equal(result, expected(request))
        assert engine.most <= 2
    assert engine.alive == 0


@pytest.mark.parametrize("sized", [False, True])
def test_memory_is_bounded(bert, sized):
    executable = static_engine.FixedExecutable
    memory = 10_000 if sized else int(2.5 * files.weight_bytes(files.read(bert)))
    with pytest.MonkeyPatch.context() as patch:
        if sized:
            patch.setattr(executable, "size", lambda _: 5000, raising=False)
        static = replace(SMALL, executables=9, memory=memory)
        with static_engine.registered(static) as engine, isorun.Session(bert, "static") as session:
            for length in (8, 16, 32, 64):
                session.run(None, feeds(1, length))
            assert engine.most == 2


def test_backend_that_is_not_thread_safe_is_serialized(bert, expected):
    requests = [feeds(batch, length) for batch in (1, 5) for length in (3, 15)] * 3
    static = static_engine.registered(thread_safe=False, usable_after_failure=False)
    with static, isorun.Session(bert, "static") as session, ThreadPoolExecutor(4) as pool:
        for request, result in zip(requests, pool.map(lambda values: session.run(None, values), requests), strict=True):
            assert_equal(result, expected(request))


def test_warmup_compiles_the_shapes(bert):
    with static_engine.registered(replace(SMALL, executables=9)) as engine, isorun.Session(bert, "static") as session:
        session.warmup([(1, 16), (3, 20)], measure=False)
        assert shapes(session) == ["1x8", "1x16", "4x32"]
        compiled = len(engine.compiled)
        session.run(None, feeds(2, 25))
        assert len(engine.compiled) == compiled


def test_default_warmup_compiles_the_declared_lengths(bert):
    with static_engine.registered(replace(SMALL, executables=9)), isorun.Session(bert, "static") as session:
        session.warmup(measure=False)
        assert sorted(shapes(session)) == sorted(["1x8", "1x16", "1x32", "1x64", "4x32", "4x64"])


def test_bindings_streams_and_scheduled_runs_have_the_shapes_of_the_requests(session, expected):
    request = feeds(3, 11)
    wanted = expected(request)
    binding = bound(session, request, "last_hidden_state", "pooler_output")
    session.run_with_iobinding(binding)
    assert_equal(binding.copy_outputs_to_cpu(), wanted)
    assert_equal(session.submit(None, request).result(), wanted)
    assert_equal(next(session.run_batches(None, [request])), wanted)
    singles = [{name: array[row] for name, array in request.items()} for row in range(3)]
    with session.map(singles) as results:
        for row, result in enumerate(results):
            assert_equal(result, [array[row] for array in wanted])


def test_masks_of_other_values_run_the_model_as_given_in_its_exact_length(bert):
    request = feeds(2, 7)
    request["attention_mask"] = request["attention_mask"] * 3
    with isorun.Session(bert, "ort-cpu", padding="keep") as reference:
        wanted = reference.run(None, request)
    with static_engine.registered() as engine, isorun.Session(bert, "static") as session:
        assert_equal(session.run(None, request), wanted)
        assert (4, 7) in [shape[0] for shape in engine.compiled]


def test_rows_that_depend_on_others_run_in_their_number():
    model = parsed(LAST_ROW_SCALED)
    x = np.random.default_rng(0).random((6, 3), np.float32) + 1
    with static_engine.registered() as engine, isorun.Session(model, "static") as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x / x.max(0), rtol=1e-6)
        assert engine.compiled == [[(6, 3)]]
        assert "ReduceMax" in session.provenance.details["static_shapes"]["exact"]["batch"]


def test_other_symbolic_dimensions_run_as_they_are():
    with static_engine.registered() as engine, isorun.Session(parsed(IMAGE), "static") as session:
        for size in (5, 6):
            x = np.full((3, 1, size, size), -1.0, np.float32)
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.zeros_like(x))
        assert engine.compiled == [[(4, 1, 5, 5)], [(4, 1, 6, 6)]]


def test_empty_batch_has_no_rows():
    with static_engine.registered(), isorun.Session(parsed(IMAGE), "static") as session:
        assert session.run(None, {"x": np.zeros((0, 1, 2, 2), np.float32)})[0].shape == (0, 1, 2, 2)


def test_model_of_fixed_shapes_is_compiled_as_it_is():
    fixed = parsed(IMAGE.replace("batch", "2").replace("height", "3").replace("width", "3"))
    with static_engine.registered(), isorun.Session(fixed, "static") as session:
        assert session.run(None, {"x": np.ones((2, 1, 3, 3), np.float32)})[0].sum() == 18
        assert "static_shapes" not in session.provenance.details


def test_encoder_of_fixed_shapes_is_folded_as_others_are(bert, tmp_path, expected):
    """Whether all its sizes are fixed in the file, or its length alone."""
    wanted, operators = expected(feeds(2, 16)), {}
    for name, sizes in (("all", {"batch": 2, "sequence": 16}), ("length", {"sequence": 16})):
        model = onnx.load(bert)
        for value in (*model.graph.input, *model.graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param in sizes:
                    dim.dim_value = sizes[dim.dim_param]
        onnx.save(model, tmp_path / f"{name}.onnx")
        with static_engine.registered(), isorun.Session(tmp_path / f"{name}.onnx", "static") as session:
            assert_equal(session.run(None, feeds(2, 16)), wanted)
            (operators[name],) = session.provenance.operators.values()
            if name == "length":
                assert {shape.split("]")[0] for shape in shapes(session)} <= {"input_ids[1, 16", "input_ids[4, 16"}
    assert operators["all"] == operators["length"]
    assert not {"Shape", "Range", "ConstantOfShape"} & operators["all"].keys()


def test_provenance_of_a_model_that_has_not_run():
    with static_engine.registered(), isorun.Session(parsed(IMAGE), "static") as session:
        assert session.provenance.operators


def test_shapes_above_the_limits_are_rejected(bert):
    limits = StaticShapes(batches=(1,), lengths=(8,), max_batch=2, max_length=16)
    with static_engine.registered(limits), isorun.Session(bert, "static") as session:
        assert len(session.run(None, feeds(5, 12))[0]) == 5
        with pytest.raises(InvalidFeeds, match="at most 16 tokens, got 17"):
            session.run(None, feeds(1, 17))
    with static_engine.registered(limits):
        session = isorun.Session(parsed(LAST_ROW_SCALED), "static")
        with session, pytest.raises(InvalidFeeds, match="at most 2 rows, got 3"):
            session.run(None, {"x": np.ones((3, 3), np.float32)})


def test_results_of_another_shape_are_rejected(bert):
    executable = static_engine.FixedExecutable
    right = executable.run
    with static_engine.registered(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(executable, "run", lambda *call: [array[:, :3] for array in right(*call)])
        message = "'last_hidden_state' an array of size 8 at dimension 1"
        with isorun.Session(bert, "static") as session, pytest.raises(BackendFailed, match=message):
            session.run(["last_hidden_state"], feeds(1, 5))


@pytest.mark.parametrize("error", [UnsupportedModel("too long"), BackendFailed("too long"), MemoryError("too long")])
def test_failed_compilation_leaves_the_session_usable(bert, expected, error):
    executable = static_engine.FixedExecutable
    initialize = executable.__init__

    def limited(self, engine, model, config):
        if model.info.inputs[0].shape[1] > 16:
            raise error
        initialize(self, engine, model, config)

    with static_engine.registered(usable_after_failure=False) as engine, pytest.MonkeyPatch.context() as patch:
        patch.setattr(executable, "__init__", limited)
        with isorun.Session(bert, "static") as session:
            for _ in range(2):
                with pytest.raises((UnsupportedModel, BackendFailed), match="too long"):
                    session.run(None, feeds(1, 20))
                assert_equal(session.run(None, feeds(1, 12)), expected(feeds(1, 12)))
            assert len(engine.compiled) == 2, "other shapes are not compiled again"
            assert session.metrics().recompiled == 0


def test_inputs_that_must_agree_in_size_but_do_not():
    with static_engine.registered(), isorun.Session(parsed(SUM), "static") as session:
        x = np.arange(3, dtype=np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x, "y": x})[0], 2 * x)


def test_compilations_are_logged_with_their_seconds(bert, caplog):
    caplog.set_level(logging.INFO, "isorun")
    with static_engine.registered(), isorun.Session(bert, "static") as session:
        session.run(None, feeds(2, 20))
        session.run(None, feeds(2, 20))
    lines = [record.getMessage() for record in caplog.records if "the shape" in record.getMessage()]
    assert [line.rpartition(" in ")[0] for line in lines] == [
        "static: compiled the shape 1x8",
        "static: compiled the shape 4x32",
    ]


@pytest.mark.parametrize("size", [lambda _: 1 / 0, lambda _: None, lambda _: "1 MB", lambda _: -5])
def test_size_of_an_executable_is_checked(size, monkeypatch):
    monkeypatch.setattr(static_engine.FixedExecutable, "size", size, raising=False)
    with (
        static_engine.registered(name="static-sized"),
        pytest.raises(BackendFailed, match=r"static-sized: size\(\)"),
        isorun.Session(parsed(SUM), "static-sized") as session,
    ):
        session.run(None, {"x": np.ones(3, np.float32), "y": np.ones(3, np.float32)})
