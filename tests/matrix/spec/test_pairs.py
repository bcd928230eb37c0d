from pathlib import Path

import pytest

from isorun.errors import SpecError
from isorun_matrix.spec.pairs import changed, combine, in_one_environment
from isorun_matrix.spec.reader import load
from isorun_matrix.spec.spec import Spec

TEXT = """
models: {m: {preset: bert-3l}, other: {preset: bert-6l}}
shapes: [1x8, 2x8]
backends: [{name: ort-cpu, threads: [1, 2]}, reference]
exclude: [{model: other}]
"""


def spec(folder: Path, *replaced: tuple[str, str]) -> Spec:
    text = TEXT
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    path = folder / "spec.yaml"
    path.write_text(text)
    return load(path)


def test_sides_share_models_that_are_the_same(tmp_path: Path) -> None:
    combined, pairs, alone = combine(spec(tmp_path), spec(tmp_path, (", reference", "")))
    assert set(combined.models) == {"m", "other"}
    assert [pair.id for pair in pairs] == [f"m/{shape}/ort-cpu.t{n}/fp32" for shape in ("1x8", "2x8") for n in (1, 2)]
    assert (pairs[0].a, pairs[0].b) == ("m/1x8/ort-cpu.a.t1/fp32", "m/1x8/ort-cpu.b.t1/fp32")
    assert set(combined.cell_ids()) == {name for pair in pairs for name in (pair.a, pair.b)}
    assert alone == ["m/1x8/reference/fp32", "m/2x8/reference/fp32"]
    assert not [*combined.problems()]


def test_models_that_differ_are_measured_on_their_side_only(tmp_path: Path) -> None:
    combined, pairs, _ = combine(spec(tmp_path), spec(tmp_path, ("m: {preset: bert-3l}", "m: {preset: bert-6l}")))
    assert set(combined.models) == {"m.a", "m.b", "other"}
    assert (pairs[0].a, pairs[0].b) == ("m.a/1x8/ort-cpu.a.t1/fp32", "m.b/1x8/ort-cpu.b.t1/fp32")
    assert set(combined.cell_ids()) == {name for pair in pairs for name in (pair.a, pair.b)}
    assert combined.common_rounds


def test_names_the_pairs_of_which_one_side_runs_in_an_environment(tmp_path: Path) -> None:
    plain = spec(tmp_path)
    isolated, mixed = changed(plain, "next", {}), plain.model_copy(deep=True)
    mixed.backends[1] = isolated.backends[1]
    for a, b, uneven in (
        (plain, plain, set()),
        (isolated, changed(plain, "other", {}), set()),
        (plain, isolated, {"ort-cpu", "reference"}),
        (mixed, plain, {"reference"}),
    ):
        combined, pairs, _ = combine(a, b)
        labels = {pair.id.split("/")[2].partition(".")[0] for pair in in_one_environment(combined, pairs)}
        assert labels == uneven


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("exclude:", "rounds: 7\nexclude:", "same rounds, got 5 and 7"),
        ("m: {preset", "n: {preset", "no cell in common"),
        ("{m: {preset: bert-3l}", "{m: {preset: bert-6l}, m.a: {preset: bert-3l}", "called 'm.a'"),
    ],
)
def test_rejects_specs_that_cannot_be_compared(tmp_path: Path, old: str, new: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        combine(spec(tmp_path), spec(tmp_path, (old, new)))
