from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from isorun.errors import InvalidArgument, InvalidFeeds, SpecError
from isorun.models.lowering import ModelGraphs
from isorun.models.source import open_model
from isorun.system.cache import Cache
from isorun_matrix.execution.bisection.subject import Subject


def subject(model: Path, **more: Any) -> Subject:
    return Subject(model, "ort-cpu", "onnxruntime", **more)


def test_environments_with_other_packages_have_other_names(tmp_path: Path) -> None:
    ways: list[tuple[str, ...]] = [(), ("a",), ("a", "b"), ("b", "a")]
    plain, a, both, same = (subject(tmp_path, install=install).environment("1.31.1") for install in ways)
    assert plain == "onnxruntime-1.31.1"
    assert len({plain, a, both}) == 3
    assert same == both


def test_says_what_is_wrong_with_a_shape_as_a_spec_does(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"shapes\.0: a shape must be BATCHxSEQUENCE"):
        subject(tmp_path, shape="wide").spec(["1.31.1"], 1)


@pytest.mark.parametrize("more", [{"precision": "int4"}, {"options": {"foo": 1}}, {"options": {"inter_op_threads": 0}}])
def test_rejects_settings_that_no_release_supports(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        subject(tmp_path, **more).require_settings()


def test_settings_of_a_plugin_depend_on_the_release(tmp_path: Path) -> None:
    subject(tmp_path).require_settings()
    Subject(tmp_path, "absent", "package", precision="int4").require_settings()
    Subject(tmp_path, "ort-ep:absent", "package").require_settings()


@pytest.mark.parametrize(
    ("inputs", "shape", "accepted"),
    [
        ("float[batch, sequence] x", "2x3", True),
        ("float[batch, sequence] x", "2", False),
        ("float[batch, 3] x", "2", True),
        ("float[batch] x", "2", True),
    ],
)
def test_rejects_shapes_without_the_size_of_a_dimension(
    tmp_path: Path, inputs: str, shape: str, accepted: bool
) -> None:
    text = f'<ir_version: 9, opset_import: ["": 17]> g ({inputs}) => (float y) {{y = ReduceSum <keepdims = 0> (x)}}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    info = ModelGraphs(open_model(tmp_path / "m.onnx", Cache()), Cache()).info
    if accepted:
        subject(tmp_path / "m.onnx", shape=shape).require_feeds(info)
        return
    with pytest.raises(InvalidFeeds, match="--shape"):
        subject(tmp_path / "m.onnx", shape=shape).require_feeds(info)


def test_rejects_sequences_above_the_maximum(bert: Path) -> None:
    info = ModelGraphs(open_model(bert, Cache()), Cache()).info
    (maximum,) = {size for size in info.limits.values() if size is not None}
    subject(bert, shape=f"2x{maximum}").require_feeds(info)
    with pytest.raises(InvalidFeeds, match="--shape"):
        subject(bert, shape=f"2x{maximum + 1}").require_feeds(info)
