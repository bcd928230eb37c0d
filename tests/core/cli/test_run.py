import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tiny
from isorun import Session
from onnx_text import graph

_EATING, _BREAD, _BABY = "A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."


@pytest.fixture
def feeds(tmp_path: Path) -> Path:
    path = tmp_path / "feeds.npz"
    np.savez(path, **tiny.feeds())
    return path


def test_minilm_ranks_sentences(isorun: Callable[..., Any], minilm_model: Path) -> None:
    texts = [part for text in (_EATING, _BREAD, _BABY) for part in ("--text", text)]
    ran = isorun("run", minilm_model, "--backend", "ort-cpu", *texts, "--json")
    assert ran.code == 0
    result = ran.json
    assert result["pooling"] == "mean"
    assert result["outputs"]["last_hidden_state"]["shape"] == [3, 11, 384]
    cosine = np.array(result["cosine"])
    np.testing.assert_allclose(cosine, cosine.T, atol=1e-6)
    np.testing.assert_allclose(cosine.diagonal(), 1, atol=1e-6)
    assert cosine[0, 1] == pytest.approx(0.755, abs=2e-3)
    assert cosine[0, 1] > cosine[0, 2] + 0.5
    assert result["provenance"]["backend"] == "ort-cpu"


def test_prints_cosines_of_texts(isorun: Callable[..., Any], minilm_model: Path) -> None:
    ran = isorun("run", minilm_model, "--backend", "ort-cpu", "--text", _EATING, "--text", _BREAD)
    assert "Cosine between texts (mean pooling of last_hidden_state)" in ran.out
    assert "0.755" in ran.out
    assert "ort-cpu, fp32" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100  # the footer names the hardware
    many = [part for number in range(9) for part in ("--text", f"number {number}")]
    assert "Nearest text to each" in isorun("run", minilm_model, "--backend", "ort-cpu", *many).out
    alone = isorun("run", minilm_model, "--backend", "ort-cpu", "--text", _EATING)
    assert "Cosine" not in alone.out
    first = isorun("run", minilm_model, "--text", _EATING, "--text", _BREAD, "--pooling", "cls")
    assert "cls pooling of last_hidden_state" in first.out


def test_warns_of_truncated_text(isorun: Callable[..., Any], minilm_model: Path) -> None:
    ran = isorun("run", minilm_model, "--backend", "ort-cpu", "--text", "word " * 600, "--json")
    assert ran.json["inputs"]["input_ids"]["shape"] == [1, 256]
    assert ran.err == "isorun: Truncated to the maximum of 256 tokens: text 0 (602 tokens)\n"


def test_arrays_in_and_out(isorun: Callable[..., Any], bert: Path, feeds: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.npz"
    ran = isorun("run", bert, "--backend", "ort-cpu", "--feeds", feeds, "--output", output, "--json")
    assert ran.code == 0
    with Session(bert, "ort-cpu") as session, np.load(output) as saved:
        expected = session.run(None, tiny.feeds())
        for spec, array in zip(session.get_outputs(), expected, strict=True):
            np.testing.assert_array_equal(saved[spec.name], array)
            np.testing.assert_allclose(ran.json["outputs"][spec.name]["first"], array.reshape(-1)[:3], rtol=1e-6)


def test_keeps_its_inputs(isorun: Callable[..., Any], bert: Path, feeds: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(bert.read_bytes())
    for output in (model, feeds):
        before = output.read_bytes()
        ran = isorun("run", model, "--feeds", feeds, "--output", output)
        assert (ran.code, ran.out) == (2, "")
        assert f"{output} is a file that this command reads" in ran.err
        assert output.read_bytes() == before


def test_keeps_the_weights_of_its_model(isorun: Callable[..., Any], tmp_path: Path) -> None:
    model, weights, feeds = (tmp_path / name for name in ("model.onnx", "weights.npz", "x.npz"))
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4] x) => (float[n, 4] y) { y = Add (x, w) }""")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    onnx.save(proto, model, save_as_external_data=True, location=weights.name, size_threshold=0)
    np.savez(feeds, x=np.ones((1, 4), np.float32))
    before = weights.read_bytes()
    ran = isorun("run", model, "--feeds", feeds, "--output", weights)
    assert (ran.code, f"{weights} is a file that this command reads" in ran.err) == (2, True)
    assert weights.read_bytes() == before


def test_computes_requested_outputs(isorun: Callable[..., Any], bert: Path, feeds: Path) -> None:
    ran = isorun("run", bert, "--feeds", feeds, "--backend", "ort-cpu", "--outputs", "pooler_output", "--json")
    assert list(ran.json["outputs"]) == ["pooler_output"]
    assert ran.json["provenance"]["fused"]["SingleQueryAttention"] == 1
    wrong = isorun("run", bert, "--feeds", feeds, "--outputs", "pooled_output")
    assert wrong.code == 2
    assert "no output 'pooled_output'; did you mean 'pooler_output'?" in wrong.err


def test_repeat_gives_percentiles_in_order(isorun: Callable[..., Any], bert: Path, feeds: Path) -> None:
    latency = isorun("run", bert, "--backend", "ort-cpu", "--feeds", feeds, "--repeat", 20, "--json").json["latency_ms"]
    assert latency["runs"] == 20
    order = [latency[name] for name in ("min", "p50", "p90", "p95", "p99", "max")]
    assert order == sorted(order)
    assert 0 < order[0] <= latency["mean"] <= order[-1]
    ran = isorun("run", bert, "--backend", "ort-cpu", "--feeds", feeds, "--repeat", 3)
    assert "over 3 runs" in ran.out


def test_provenance_in_full(isorun: Callable[..., Any], bert: Path, feeds: Path) -> None:
    ran = isorun("run", bert, "--backend", "openvino,ort-cpu", "--feeds", feeds, "--provenance", "--threads", 1)
    assert ran.code == 0
    assert "openvino on " in ran.out
    assert "2 SelfAttention" in ran.out
    assert ", 1 thread" in ran.out


def test_names_skipped_backends(isorun: Callable[..., Any], bert: Path, feeds: Path) -> None:
    ran = isorun("run", bert, "--backend", "ort-cpu,reference", "--precision", "fp64", "--feeds", feeds)
    assert ran.code == 0
    assert "skipped ort-cpu: " in ran.out
    assert "reference, fp64" in ran.out


def test_options_reach_the_backend(isorun: Callable[..., Any], bert: Path, feeds: Path) -> None:
    arguments = ("run", bert, "--backend", "ort-cpu", "--feeds", feeds, "--option")
    assert isorun(*arguments, "graph_optimization_level=basic").code == 0
    assert "did you mean 'graph_optimization_level'" in isorun(*arguments, "graph_optimization=1").err
    assert "expected KEY=VALUE" in isorun(*arguments, "level").err
    twice = isorun(*arguments, "inter_op_threads=1", "--option", "inter_op_threads=2")
    assert (twice.code, "inter_op_threads is given twice" in twice.err) == (2, True)
    twice = isorun(*arguments, 'session_config={"a": "1", "a": "2"}')
    assert (twice.code, "duplicate key 'a'. Keep one" in twice.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--backend", "ort-cp"], 2, "did you mean 'ort-cpu'"),
        (["--backend", "ort-cpu,openvin"], 2, "did you mean 'openvino'"),
        (["--precision", "bf16", "--backend", "ort-cpu"], 3, "precision 'bf16'"),
        (["--padding", "kep"], 2, "did you mean 'keep'"),
        (["--pooling", "sum"], 2, "pooling 'sum'"),
        (["--pooling", "mean"], 2, "--pooling is for comparing texts"),
        (["--threads", "0"], 2, "--threads"),
        (["--threads", "1025"], 2, "less than or equal to 1024"),
        (["--repeat", "0"], 2, "--repeat"),
        (["--text", "both"], 2, "either --feeds or --text"),
        (["--output", "/no/such/folder/o.npz"], 2, "does not exist"),
    ],
)
def test_rejects_invalid_requests(
    isorun: Callable[..., Any], bert: Path, feeds: Path, arguments: list[str], code: int, message: str
) -> None:
    ran = isorun("run", bert, "--feeds", feeds, *arguments)
    assert ran.code == code
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_a_backend_whose_package_is_absent(
    isorun: Callable[..., Any], bert: Path, feeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "openvino" else find_spec(name))
    ran = isorun("run", bert, "--backend", "openvino", "--feeds", feeds)
    assert ran.code == 3
    assert "pip install 'openvino" in ran.err


def test_rejects_a_file_that_is_not_npz(isorun: Callable[..., Any], bert: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.savez(tmp_path / "objects.npz", input_ids=np.array([{}], dtype=object))
    (tmp_path / "text.npz").write_text("hello")
    with zipfile.ZipFile(tmp_path / "twice.npz", "w") as archive, warnings.catch_warnings(action="ignore"):
        for name in ("input_ids.npy", "input_ids.npy"):
            archive.write(tmp_path / "one.npy", name)
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "open.py").touch()
    for name, message in (
        ("one.npy", "one unnamed array"),
        ("objects.npz", "not an .npz file of plain arrays"),
        ("twice.npz", "has the array 'input_ids' twice"),
        ("text.npz", "is not an .npz file"),
        ("empty.npz", "is not an .npz file"),
        ("txt.npz", f"did you mean {tmp_path / 'text.npz'}?"),
        ("text.npy", f"did you mean {tmp_path / 'text.npz'}?"),
        ("open.npz", f"There is no file {tmp_path / 'open.npz'}\n"),
        (".", "is a folder"),
    ):
        ran = isorun("run", bert, "--feeds", tmp_path / name)
        assert (ran.code, message in ran.err) == (2, True), ran.err


def test_text_without_a_tokenizer(isorun: Callable[..., Any], bert: Path) -> None:
    ran = isorun("run", bert, "--text", "hello")
    assert ran.code == 2
    assert "has no tokenizer beside it" in ran.err


def test_json_has_null_for_nan_and_infinity(isorun: Callable[..., Any], tmp_path: Path) -> None:
    onnx.save(graph("log (float[n] x) => (float[n] y) { y = Log (x) }"), tmp_path / "log.onnx")
    np.savez(tmp_path / "feeds.npz", x=np.array([-1, 0, 1], np.float32))
    ran = isorun("run", tmp_path / "log.onnx", "--backend", "ort-cpu", "--feeds", tmp_path / "feeds.npz", "--json")
    assert ran.json["outputs"]["y"]["first"] == [None, None, 0.0]
    assert "fused" in ran.json["provenance"]


def test_device_is_requested_from_the_backend(isorun: Callable[..., Any], bert: Path, feeds: Path) -> None:
    assert isorun("run", str(bert), "--feeds", str(feeds), "--backend", "ort-cpu", "--device", "cpu").code == 0
    ran = isorun("run", str(bert), "--feeds", str(feeds), "--backend", "ort-cpu", "--device", "cuda")
    assert ran.code != 0
    assert "it does not support device 'cuda' (supported: cpu)" in ran.err


def test_outputs_of_any_name_and_texts_are_saved(isorun: Callable[..., Any], tmp_path: Path) -> None:
    model, feeds, output = (tmp_path / name for name in ("m.onnx", "x.npz", "o.npz"))
    onnx.save(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
            g (float[n] x, string[n] s) => (float[n] file, float[n] allow_pickle, string[n] text)
            { file = Neg (x)  allow_pickle = Abs (x)  text = Identity (s) }"""),
        model,
    )
    x = np.array([1, -2], np.float32)
    np.savez(feeds, x=x, s=np.array(["a", "ü b"]))
    ran = isorun("run", model, "--backend", "ort-cpu", "--feeds", feeds, "--output", output)
    assert ran.code == 0
    with np.load(output) as saved:
        assert saved.files == ["file", "allow_pickle", "text"]
        np.testing.assert_array_equal(saved["file"], -x)
        np.testing.assert_array_equal(saved["allow_pickle"], abs(x))
        assert saved["text"].tolist() == ["a", "ü b"]


def test_outputs_of_types_that_numpy_lacks_are_saved_with_their_values(
    isorun: Callable[..., Any], tmp_path: Path
) -> None:
    model, feeds, output = (tmp_path / name for name in ("m.onnx", "x.npz", "o.npz"))
    onnx.save(
        onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
            g (float[n] x) => (bfloat16[n] wide, float8e5m2[n] narrow, int4[n] whole)
            { wide = Cast <to = 16> (x)  narrow = Cast <to = 19> (x)  whole = Cast <to = 22> (x) }"""),
        model,
    )
    np.savez(feeds, x=np.array([1, -2.5], np.float32))
    ran = isorun("run", model, "--backend", "reference", "--feeds", feeds, "--output", output)
    assert ran.code == 0, ran.err
    with np.load(output) as saved:
        assert {name: (str(array.dtype), array.tolist()) for name, array in saved.items()} == {
            "wide": ("float32", [1, -2.5]),
            "narrow": ("float32", [1, -2.5]),
            "whole": ("int8", [1, -2]),
        }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["", "--text", "a"], "The name of the model is empty"),
        (["https://example.org/model.onnx", "--text", "a"], "not downloaded from addresses"),
    ],
)
def test_names_of_no_model(isorun: Callable[..., Any], arguments: list[str], message: str) -> None:
    ran = isorun("run", *arguments)
    assert (ran.code, message in ran.err) == (2, True), ran.err


def test_broken_links_and_pipes(isorun: Callable[..., Any], bert: Path, feeds: Path, tmp_path: Path) -> None:
    for name in ("feeds.npy", "model.onnx"):
        (tmp_path / name).symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.npz")
    for arguments, message in (
        ((bert, "--feeds", tmp_path / "feeds.npy"), "feeds.npy is a broken link to nowhere"),
        ((tmp_path / "model.onnx", "--feeds", feeds), "model.onnx is a broken link to nowhere"),
        ((bert, "--feeds", tmp_path / "pipe.npz"), "is a pipe"),
        ((bert, "--feeds", tmp_path / "pip.npz"), "pip.npz\n"),  # no pipe is suggested
    ):
        ran = isorun("run", *arguments)
        assert (ran.code, message in ran.err) == (2, True), ran.err


def test_a_link_that_leads_to_itself(isorun: Callable[..., Any], bert: Path, feeds: Path, tmp_path: Path) -> None:
    link = tmp_path / "loop.npz"
    link.symlink_to(link)
    ran = isorun("run", bert, "--backend", "ort-cpu", "--feeds", feeds, "--output", link)
    assert (ran.code, "leads to itself" in ran.err) == (2, True)
