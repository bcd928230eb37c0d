from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import masks
from isorun import Session
from isorun.parity.samples import MASKS, WITHOUT_MASK


def test_the_backends_agree_on_every_mask(isorun: Callable[..., Any], bert: Path) -> None:
    ran = isorun("parity", bert, "--backends", "ort-cpu,openvino", "--sequence", 12, "--json")
    assert ran.code == 0
    assert ran.json["reference"] == {"backend": "reference", "precision": "fp64"}
    for name in ("ort-cpu", "openvino"):
        by_mask = ran.json["backends"][name]
        assert set(by_mask) == {"none", "right", "left", "holes", "masked-row"}
        assert all(result["verdict"] == "pass" and 0 < result["max_abs"] < 1e-4 for result in by_mask.values())


def test_a_reference_is_one_backend(isorun: Callable[..., Any], bert: Path) -> None:
    ran = isorun("parity", bert, "--backends", "ort-cpu", "--against", "auto")
    assert (ran.code, "'auto' is not a backend; known: " in ran.err) == (2, True), ran.err


def test_a_batch_of_one_has_no_row_to_mask(isorun: Callable[..., Any], bert: Path) -> None:
    ran = isorun("parity", bert, "--backends", "ort-cpu", "--batch", 1, "--sequence", 5, "--json")
    assert ran.code == 0
    assert set(ran.json["backends"]["ort-cpu"]) == {"none", "right", "left", "holes"}


def test_people_read_a_table(isorun: Callable[..., Any], bert: Path) -> None:
    ran = isorun("parity", bert, "--backends", "openvino", "--against", "ort-cpu", "--batch", 2, "--sequence", 9)
    assert ran.code == 0
    assert "Against ort-cpu in fp32; batch 2, sequence 9, seed 0" in ran.out
    assert ran.out.count("pass") == 5
    assert max(map(len, ran.out.splitlines())) <= 80


def test_threads_are_those_of_the_backends_that_can_set_them(isorun: Callable[..., Any], bert: Path) -> None:
    assert isorun("parity", bert, "--backends", "ort-cpu", "--sequence", 9, "--threads", 1).code == 0
    ran = isorun("parity", bert, "--backends", "reference", "--against", "ort-cpu", "--threads", 1)
    assert (ran.code, "`threads`" in ran.err) == (3, True)


def test_compares_the_backends_that_can_run_the_model(isorun: Callable[..., Any], bert: Path) -> None:
    ran = isorun("parity", bert, "--backends", "reference,ort-cpu", "--against", "ort-cpu", "--threads", 1, "--json")
    assert (ran.code, set(ran.json["backends"]), set(ran.json["errors"])) == (3, {"ort-cpu"}, {"reference"})
    assert "reference is not compared: Backend 'reference' cannot be used: it does not support `threads`" in ran.err
    ran = isorun("parity", bert, "--backends", "ort-cpu,openvino", "--against", "ort-cpu", "--precision", "fp64")
    assert (ran.code, ran.out) == (3, "")
    assert "ort-cpu is not compared" in ran.err
    assert "isorun: Backend 'openvino' cannot be used" in ran.err


def test_rejects_impossible_sizes(isorun: Callable[..., Any], bert: Path) -> None:
    ran = isorun("parity", bert, "--backends", "ort-cpu", "--threads", 1025)
    assert (ran.code, "less than or equal to 1024" in ran.err) == (2, True)
    ran = isorun("parity", bert, "--backends", "ort-cpu", "--batch", 10**12)
    assert (ran.code, ran.out) == (2, "")
    assert "memory: Unable to allocate" in ran.err


def test_a_wrong_backend_exits_with_1(isorun: Callable[..., Any], bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Session.run

    def zeros_at_left_padding(self: Session, names: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        outputs = run(self, names, feeds)
        mask = feeds["attention_mask"]
        left = self.provenance.backend == "openvino" and bool((np.diff(mask) > 0).any())
        return [np.zeros_like(output) for output in outputs] if left else outputs

    monkeypatch.setattr(Session, "run", zeros_at_left_padding)
    arguments = ("parity", bert, "--backends", "ort-cpu,openvino", "--against", "ort-cpu", "--sequence", 9)
    ran = isorun(*arguments)
    assert ran.code == 1
    assert ran.err == "isorun: 2 of 10 comparisons failed: openvino on left, openvino on holes\n"
    assert "openvino, left: last_hidden_state: max_rel is" in ran.out
    assert isorun(*arguments, "--json").json["backends"]["openvino"]["left"]["verdict"] == "fail"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--backends", "ort-cpu", "--precision", "fp23"], 2, "'fp23'"),
        (["--backends", "ort-cpu", "--precision", "bf16"], 3, "precision 'bf16'"),
        (["--backends", "ortcpu"], 2, "did you mean 'ort-cpu'"),
        (["--backends", "ort-cpu,opnvino"], 2, "did you mean 'openvino'"),
        (["--backends", "ort-cpu", "--against", "referense"], 2, "did you mean 'reference'"),
        (["--backends", "ort-cpu", "--sequence", "41"], 2, "at most 40"),
    ],
)
def test_wrong_usage(isorun: Callable[..., Any], bert: Path, arguments: list[str], code: int, message: str) -> None:
    ran = isorun("parity", bert, *arguments)
    assert (ran.code, message in ran.err) == (code, True), ran.err


@pytest.mark.parametrize(("mask", "cases"), [(masks.NAME, set(MASKS)), (None, {WITHOUT_MASK})])
def test_masks_are_recognized_whatever_their_name(
    isorun: Callable[..., Any], mask: str | None, cases: set[str], tmp_path: Path
) -> None:
    """The backend leaves zeros at padding, the reference does not."""
    path = masks.write(tmp_path / "model.onnx", mask)
    ran = isorun("parity", path, "--backends", "ort-cpu", "--sequence", 40, "--json")
    assert ran.code == 0, ran.err
    assert set(ran.json["backends"]["ort-cpu"]) == cases


def test_a_step_of_a_quantized_model_is_explained(isorun: Callable[..., Any], tmp_path: Path) -> None:
    """What is rounded to 8 bits shows in which order products are added up."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[N, 512] x) => (float[N, 2] y)
    <float many = {1000000}, float step = {0.01}, int8 zero = {0}, float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
        sum = MatMul (x, weight)
        large = Mul (sum, many)
        wave = Sin (large)
        rounded = QuantizeLinear (wave, step, zero)
        value = DequantizeLinear (rounded, step, zero)
        y = MatMul (value, w)
    }"""
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).normal(size=(512, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    onnx.save(model, path := tmp_path / "quantized.onnx")
    ran = isorun("parity", path, "--backends", "ort-cpu")
    assert ran.code == 1
    assert "--precision int8" in ran.err
