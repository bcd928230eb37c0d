"""Failures of TensorRT, and invalid options."""

import time

import numpy as np
import onnx
import pytest

import fake_tensorrt
import onnx_text
import tiny
from isorun.errors import BackendFailed, BackendUnavailable, InvalidOption, UnsupportedModel
from isorun.plugin import registry
from isorun.system.cache import Cache
from isorun.types import CompileConfig
from isorun_backends.tensorrt import builder
from tensorrt_sessions import assert_close, expected, open_session

pytestmark = pytest.mark.usefixtures("installed")


def test_names_the_operators_that_the_parser_does_not_support(bert, tmp_path):
    from isorun.models import lowering
    from isorun.models import source as models

    cache = Cache(tmp_path)
    lowered = lowering.ModelGraphs(models.open_model(bert, cache), cache).lower(("com.microsoft",))
    backend = registry.get("tensorrt")
    with pytest.raises(UnsupportedModel, match="no importer") as caught:
        backend.compile(lowered, CompileConfig(threads=None, cache_dir=str(tmp_path)))
    assert caught.value.operators == ("EmbedLayerNormalization", "Attention", "BiasGelu")


@pytest.mark.parametrize(
    ("part", "message", "error"),
    [
        ("start", "CUDA initialization failure with error: 35", BackendUnavailable),
        ("build", "no kernel", BackendFailed),
        ("type", "int32", BackendFailed),  # an engine of other types
    ],
)
def test_what_breaks_on_opening_is_an_error_with_its_message(bert, tmp_path, part, message, error):
    fake_tensorrt.broken[part] = message
    with pytest.raises(error, match=message):
        open_session(bert, tmp_path)


def test_a_failed_run_has_tensorrts_message(bert, tmp_path):
    with open_session(bert, tmp_path) as session:
        fake_tensorrt.broken["run"] = "out of tune"
        with pytest.raises(BackendFailed, match="out of tune") as caught:
            session.run(None, tiny.feeds())
        assert str(caught.value.__cause__) == "out of tune"
        fake_tensorrt.broken.clear()
        assert_close(session.run(None, tiny.feeds()), expected(bert, tiny.feeds()))


def test_names_an_engine_that_does_not_load(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(builder, "build", lambda *_: b"another's")
    with pytest.raises(BackendFailed, match=r"engines.*the engine is damaged"):
        open_session(bert, tmp_path)


def test_rejected_timings_are_replaced(bert, tmp_path):
    with open_session(bert, tmp_path):
        pass
    (timings,) = (tmp_path / "timings").iterdir()
    timings.write_bytes(b"damaged")
    with open_session(bert, tmp_path, shapes=["1x8"]):
        pass
    assert timings.read_bytes() == b"t"


def test_an_invalid_description_does_not_reject_the_engine(bert, tmp_path):
    with open_session(bert, tmp_path) as session:
        fake_tensorrt.broken["description"] = '{"Layers": [inf]}'
        provenance = session.provenance
    assert provenance.operators == {"TensorRT": {}}
    assert "Expecting value" in provenance.details["layers"]


def test_an_unused_input_may_be_missing_from_the_engine(tmp_path):
    model = onnx_text.graph(
        """g (int64[batch, sequence] ids, int64[batch, sequence] unread) => (float[batch, sequence] y)
        { y = Cast<to = 1>(ids) }"""
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    ids = np.arange(6).reshape(2, 3)
    with open_session(path, tmp_path) as session:
        (output,) = session.run(None, {"ids": ids, "unread": ids})
    np.testing.assert_array_equal(output, ids)


def test_a_failed_background_build_is_reported_at_the_next_run(bert, tmp_path):
    with open_session(bert, tmp_path, shapes=["1x8"], on_miss="build") as session:
        fake_tensorrt.broken["start"] = "no memory"
        deadline, message = time.monotonic() + 30, ""
        while "no memory" not in message:
            with pytest.raises(BackendUnavailable, match="being built") as caught:
                session.run(None, tiny.feeds(2, 9))
            message = str(caught.value)
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_closed_executable_raises_and_builds_nothing(bert, tmp_path):
    with open_session(bert, tmp_path, on_miss="build") as session:
        executable = session._model._main.executable
    with pytest.raises(BackendFailed, match="was closed"):
        executable.run(None, tiny.feeds(1, 30))
    assert len(fake_tensorrt.builds) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_miss": "bild"}, "did you mean 'build'"),
        ({"workspace": -1}, "got -1"),
        ({"optimization_level": 6}, "from 0 to 5"),
        ({"shapes": ["1x2x3"]}, "batchxsequence"),
    ],
)
def test_rejects_invalid_options(bert, tmp_path, options, message):
    with pytest.raises(InvalidOption, match=message):
        open_session(bert, tmp_path, **options)


def test_rejects_a_gpu_that_does_not_exist(bert, tmp_path):
    with pytest.raises(BackendUnavailable, match="GPU 3"):
        open_session(bert, tmp_path, device_id=3)
