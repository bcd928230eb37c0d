"""Every attribute and method of ONNX Runtime's options: used, without effect here, or refused by name."""

from typing import Any

import onnx
import onnxruntime
import pytest
from onnxruntime.capi import _pybind_state as raw

import isorun.compat as ort
from isorun.compat import options
from isorun.errors import InvalidArgument


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        (
            raw.SessionOptions,
            [options._USED, options._READERS, options._IGNORED, options._IGNORED_METHODS, options._REFUSED],
        ),
        (
            raw.RunOptions,
            [options._READERS, options._IGNORED_RUN, options._IGNORED_RUN_METHODS, options._REFUSED_RUN],
        ),
    ],
)
def test_every_member_is_accounted_for(kind: type, groups: list[Any]) -> None:
    for name in options.members(kind):
        assert sum(name in group for group in groups) == 1, name


@pytest.mark.parametrize(
    ("kind", "misspelt", "nearest"),
    [
        (ort.SessionOptions, "intra_op_num_treads", "intra_op_num_threads"),
        (ort.SessionOptions, "graph_optimisation_level", "graph_optimization_level"),
        (ort.RunOptions, "log_severity_levle", "log_severity_level"),
    ],
)
def test_rejects_misspelt_attributes(kind: type, misspelt: str, nearest: str) -> None:
    with pytest.raises(
        AttributeError, match=f"{kind.__name__} has no attribute '{misspelt}'; did you mean '{nearest}'"
    ):
        setattr(kind(), misspelt, 1)
    with ort.install():
        installed = getattr(onnxruntime, kind.__name__)()
        with pytest.raises(AttributeError, match=nearest):
            setattr(installed, misspelt, 1)


def test_a_method_cannot_be_replaced() -> None:
    with pytest.raises(AttributeError, match="read-only"):
        ort.SessionOptions().add_session_config_entry = None


def test_subclasses_may_have_attributes_of_their_own() -> None:
    class Mine(ort.SessionOptions):
        pass

    mine = Mine()
    mine.note = "kept"
    mine.intra_op_num_threads = 1
    assert (mine.note, mine.intra_op_num_threads, mine.calls) == ("kept", 1, [])


def test_refuses_options_that_isorun_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    session_options = ort.SessionOptions()
    monkeypatch.setattr(options, "_IGNORED", ())
    session_options.logid = "mine"
    with pytest.raises(InvalidArgument, match=r"does not support logid\. Its effect on results is unknown"):
        options.translate(session_options)
    session_options = ort.SessionOptions()
    monkeypatch.setattr(options, "_IGNORED_METHODS", ())
    session_options.add_free_dimension_override_by_name("batch", 1)
    with pytest.raises(InvalidArgument, match="does not support add_free_dimension_override_by_name"):
        options.translate(session_options)


def test_run_options_without_effect_on_results() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Neg (x) }'
    )
    run_options = ort.RunOptions()
    run_options.logid, run_options.only_execute_path_to_fetches = "mine", True
    run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    with ort.InferenceSession(model.SerializeToString()) as session:
        assert session.run(None, {"x": [1.0]}, run_options)[0].tolist() == [-1.0]
        run_options.terminate = True
        with pytest.raises(InvalidArgument, match=r"does not support terminate\. The run was not started"):
            session.run(None, {"x": [1.0]}, run_options)
