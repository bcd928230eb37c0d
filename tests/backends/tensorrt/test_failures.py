"""What is said where TensorRT fails, and of options that mean nothing."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import fake_tensorrt
import onnx_text
import tiny
from isorun.errors import BackendFailed, BackendUnavailable, UnsupportedModel
from isorun.plugin import registry
from isorun.system.cache import Cache
from isorun.types import CompileConfig
from isorun_backends import tensorrt
from tensorrt_sessions import assert_close, expected, opened


def test_an_operator_that_the_parser_lacks_is_named(bert, tmp_path):
    from isorun.models import lowering
    from isorun.models import source as models

    cache = Cache(tmp_path)
    lowered = lowering.lower(models.open_model(bert, cache), ("com.microsoft",), cache)
    backend = registry.get("tensorrt")
    with pytest.raises(UnsupportedModel, match=r"; Attention node_\d+: no importer; ") as caught:
        backend.compile(lowered, CompileConfig(threads=None, cache_dir=str(tmp_path)))
    assert caught.value.operators == ("EmbedLayerNormalization", "Attention", "BiasGelu")


def test_a_build_that_fails_has_tensorrts_own_words(bert, tmp_path):
    with pytest.raises(BackendFailed, match=r"cannot build an engine of .*: the level is above 5"):
        opened(bert, tmp_path, optimization_level=6)


def test_a_gpu_that_tensorrt_does_not_start_on_is_said(bert, tmp_path):
    fake_tensorrt.broken["start"] = "CUDA initialization failure with error: 35"
    with pytest.raises(BackendUnavailable, match=r"TensorRT does not start: CUDA .* error: 35\. Look whether"):
        opened(bert, tmp_path)


def test_a_run_that_fails_has_tensorrts_own_words(bert, tmp_path):
    with opened(bert, tmp_path) as session:
        fake_tensorrt.broken["run"] = "out of tune"
        with pytest.raises(BackendFailed, match="tensorrt cannot run: out of tune") as caught:
            session.run(None, tiny.feeds())
        assert str(caught.value.__cause__) == "out of tune"
        fake_tensorrt.broken.clear()
        assert_close(session.run(None, tiny.feeds()), expected(bert, tiny.feeds()))


def test_an_engine_that_tensorrt_does_not_take_is_named(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(tensorrt.builder, "build", lambda *_: b"another's")
    with pytest.raises(BackendFailed, match=r"cannot load the engine in .*engines.*: the engine is damaged\. Delete"):
        opened(bert, tmp_path)


def test_an_engine_that_reads_other_types_is_refused(bert, tmp_path):
    fake_tensorrt.broken["type"] = "int32"
    with pytest.raises(BackendFailed, match=r"tensorrt made 'input_ids' int32; in the model it is int64"):
        opened(bert, tmp_path)


def test_timings_that_tensorrt_does_not_take_are_measured_anew(bert, tmp_path):
    with opened(bert, tmp_path):
        pass
    (timings,) = (tmp_path / "timings").iterdir()
    timings.write_bytes(b"damaged")
    with opened(bert, tmp_path, shapes=["1x8"]):
        pass
    assert timings.read_bytes() == b"t"


def test_a_description_that_is_no_json_refuses_no_engine(bert, tmp_path):
    with opened(bert, tmp_path) as session:
        fake_tensorrt.broken["description"] = '{"Layers": [inf]}'
        provenance = session.provenance
    assert provenance.operators == {"TensorRT": {}}
    assert "is no JSON: Expecting value" in provenance.details["layers"]


def test_an_input_that_nothing_reads_need_not_be_in_the_engine(tmp_path):
    model = onnx_text.graph(
        """g (int64[batch, sequence] ids, int64[batch, sequence] unread) => (float[batch, sequence] y)
        { y = Cast<to = 1>(ids) }"""
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    ids = np.arange(6).reshape(2, 3)
    with opened(path, tmp_path) as session:
        (found,) = session.run(None, {"ids": ids, "unread": ids})
    np.testing.assert_array_equal(found, ids)


def test_an_engine_that_cannot_be_built_aside_is_told_at_the_next_run(bert, tmp_path):
    with opened(bert, tmp_path, shapes=["1x8"], on_miss="build") as session:
        fake_tensorrt.broken["start"] = "no memory"
        with pytest.raises(BackendUnavailable, match=r"sequence=9 is being built\."):
            session.run(None, tiny.feeds(2, 9))
        session._executable._building.join()
        with pytest.raises(BackendUnavailable, match=r"an earlier one could not be: .*no memory"):
            session.run(None, tiny.feeds(2, 9))


def test_an_executable_that_was_closed_says_so_and_builds_nothing(bert, tmp_path):
    with opened(bert, tmp_path, on_miss="build") as session:
        executable = session._executable
    with pytest.raises(BackendFailed, match="was closed"):
        executable.run(None, tiny.feeds(1, 30))
    assert len(fake_tensorrt.builds) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_miss": "bild"}, "no on_miss 'bild'; did you mean 'build'"),
        ({"workspace": -1}, "workspace is -1"),
        ({"cuda_graphs": True}, "cuda_graphs is True"),
        ({"device_id": 3}, "there is no GPU 3.*sees 1"),
        ({"shapes": ["1x2x3"]}, "'1x2x3' is none of batchxsequence"),
    ],
)
def test_options_that_mean_nothing_are_refused(bert, tmp_path, options, message):
    with pytest.raises(BackendUnavailable, match=message):
        opened(bert, tmp_path, **options)
