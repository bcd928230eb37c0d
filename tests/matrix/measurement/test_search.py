"""What a search keeps, from a spec to a report, with real runtimes."""

import itertools
import json
from pathlib import Path

import pytest

import sentence_models
from matrix_runs import Isorun, cells_of, spec_file

SPEC = """
models:
  letters: {checkpoint: letters}
  plain: {path: tiny.onnx}
backends:
  - {name: ort-cpu, precisions: [fp32, int8]}
shapes: [3x8]
exclude: [{model: plain, precision: int8}]
reference: {backend: ort-cpu, precision: fp32}
tolerances: {int8: {max_rel: 0.99, rms: 0.99, cosine: 0.01, argmax: 0}}
quality: {texts: texts.txt, k: 3, minimum: 1.0}
rounds: 1
repeats: 0
repetitions: 4
warmup: 0
feeds: 1
seed: 1
control: false
"""


@pytest.mark.long
def test_a_cell_that_loses_neighbours_fails(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    folder = sentence_models.write_sentence_model(tmp_path / "letters")
    texts = {" ".join(words) for length in range(1, 5) for words in itertools.product("abc", repeat=length)}
    texts.add("a b c " * 3)
    (tmp_path / "texts.txt").write_text("\n".join(sorted(texts)))
    spec, out = SPEC.replace("checkpoint: letters", f"checkpoint: {folder}"), tmp_path / "out"
    done = isorun("run", spec_file(tmp_path, spec), "--out", out)
    cells = cells_of(isorun, out)
    exact, int8 = cells["letters/3x8/ort-cpu/fp32"], cells["letters/3x8/ort-cpu/int8"]
    assert (exact["quality"]["recall"]["value"], exact["quality"]["queries"]) == (1.0, len(texts))
    assert int8["quality"]["k"] == 3
    assert "quality: texts are truncated to the maximum of 8 tokens" in exact["notes"]
    assert int8["quality"]["recall"]["value"] < 1
    assert int8["status"] == "quality-failed", int8["reason"]
    assert done.returncode == 1
    plain = cells["plain/3x8/ort-cpu/fp32"]
    assert (plain["status"], plain["quality"]) == ("ok", None)
    assert any("quality is not measured" in note for note in plain["notes"])

    pairs = [{"texts": [text, "a b c"], "score": len({*text.split()})} for text in sorted(texts)]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    labelled = spec.replace("texts: texts.txt, k: 3, minimum: 1.0", "labels: labels.jsonl, minimum: 0")
    isorun("run", spec_file(tmp_path, labelled), "--out", tmp_path / "labelled")
    by_id = cells_of(isorun, tmp_path / "labelled")
    kept, lossy = (by_id[f"letters/3x8/ort-cpu/{precision}"]["quality"] for precision in ("fp32", "int8"))
    assert (kept["name"], kept["judged_on"]) == ("Spearman", f"{len(texts)} pairs, {len(texts)} texts")
    assert kept["kept"]["value"] == pytest.approx(1, abs=1e-3)
    assert lossy["base"] == kept["base"]
    assert lossy["value"] != kept["value"]

    lower = spec_file(tmp_path, spec.replace("minimum: 1.0", "minimum: 0.0"))
    isorun("run", lower, "--out", out, "--resume")
    again = cells_of(isorun, out)["letters/3x8/ort-cpu/int8"]
    assert (again["status"], again["started"]) == ("ok", int8["started"])  # judged again, not measured again
