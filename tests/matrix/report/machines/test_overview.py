"""Runs of several machines, merged from runs made by hand: real ones, whose recorded environment is edited."""

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from isorun.errors import SpecError
from isorun_matrix.report import html
from isorun_matrix.report.machines import overview as report
from isorun_matrix.results import machines
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.records import CellResult, RunRecord
from matrix_results import cell, record, run
from matrix_runs import SLOW, Isorun, spec_file

SPEC = SLOW.replace("backends:", "machines: {zen: {cost: 0.36, watts: 50}, xeon: {}}\nbackends:")
SPEC += "  - fake\n  - {name: fake, label: slow, options: {seconds: 0.01}}\n"


def edited(source: Path, out: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a run whose environment was recorded otherwise."""
    shutil.copytree(source, out)
    folder = RunFolder(out)
    content = folder.record().model_dump(mode="json")
    change(content["sessions"][-1]["environment"])
    folder.write_run(RunRecord.from_plain(content))
    return out


def test_merged_runs_are_one_report(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    zen = tmp_path / "zen"
    assert isorun("run", spec_file(tmp_path, SPEC), "--out", zen).returncode == 0

    def xeon(environment: dict[str, Any]) -> None:
        environment |= {"host": "another", "python": "CPython 3.99"}
        environment["cpu"]["model"] = "a Xeon"

    edited(zen, tmp_path / "xeon", xeon)
    out = tmp_path / "RUN"
    merged = isorun("merge", zen, tmp_path / "xeon", "--out", out)
    assert merged.returncode == 0, merged.stderr
    assert merged.stdout == isorun("report", out).stdout
    assert "(s)" in merged.stdout
    assert "xeon: a Xeon" in merged.stdout
    assert "CPython 3.99 on xeon)" in " ".join(merged.stdout.split())

    checked = isorun("check", out)
    assert checked.returncode == 1
    alone = {name: isorun("check", out / "machines" / name).stderr.splitlines() for name in ("xeon", "zen")}
    assert checked.stderr.splitlines() == [f"{name}: {line}" for name, lines in alone.items() for line in lines]
    for arguments in (("compare", zen, out), ("history", out)):
        refused = isorun(*arguments)
        assert refused.returncode == 2
        assert str(out / "machines" / "zen") in " ".join(refused.stderr.split())

    overview = report.overview(machines.read(out))
    figures = {(block.title, block.figure): block.rows for block in overview.blocks}
    runs = machines.read(out).runs
    for name, position in (("zen", 0), ("xeon", 1)):
        for measured in runs[name].cells:
            if not measured.control:
                value = figures[(f"tiny, {measured.shape}", "p50 ms")][measured.name][position]
                assert value.number == measured.result.latency_ms.p50
    zen_cell = next(candidate for candidate in runs["zen"].cells if candidate.label == "slow")
    cost = figures[(f"tiny, {zen_cell.shape}", "cost of a million requests")]["slow fp32"]
    expected = 0.36 / 3600 * 1e6 / zen_cell.result.throughput.requests_per_s
    assert [value.number for value in cost] == [pytest.approx(expected), None]
    rows = list(csv.DictReader(io.StringIO(overview.as_csv())))
    assert {*rows[0]} == {"cells", "figure", "cell", "zen", "xeon"}
    documents = json.loads(isorun("report", out, "--format", "json").stdout)["machines"]
    assert {*documents} == {"zen", "xeon"}
    assert "| slow fp32 |" in overview.as_tables().as_markdown()
    assert all(name in html.render(*runs.values(), overview=overview) for name in ("machine zen", "machine xeon"))


def of(feeds: Sequence[str] = (), **runs: list[CellResult]) -> report.Overview:
    """An overview of made-up runs, with these digests of their feeds."""
    runs_by_name = {name: run(*cells) for name, cells in runs.items()}
    digests = feeds or ["same"] * len(runs)
    fed = {
        name: dict.fromkeys((result.id for result in runs[name]), digest)
        for name, digest in zip(runs, digests, strict=True)
    }
    return report.overview(machines.MachineRuns(runs_by_name, fed))


def other_shape(result: CellResult) -> CellResult:
    return result.model_copy(update={"shape": "1x4", "id": result.id.replace("8x128", "1x4")})


def test_marks_what_differs() -> None:
    provenance = {"fingerprint": "beef", "versions": {"isorun": "2"}}
    changed = cell("a", p50=4.0, result={"provenance": provenance}, options={"level": 1})
    overview = of(feeds=["one", "other"], zen=[cell("a", p50=4.0)], xeon=[changed])
    assert [value.text for value in overview.blocks[0].rows["a fp32"]] == ["4.00", "4.00 (mfos)"]
    assert [note.partition(":")[0] for note in overview.notes[-4:]] == ["(f)", "(m)", "(o)", "(s)"]
    threads = of(zen=[cell("a", p50=4.0)], xeon=[cell("a", p50=4.0, threads=1)])
    assert threads.blocks[0].rows["a fp32"][1].text == "4.00 (o)"


def test_names_a_machine_that_its_spec_does_not_have() -> None:
    priced = run(cell("a", p50=4.0), spec={"machines": {"zen": {"cost": 2.0}, "xeon": {}}})
    fed = {name: {} for name in ("zen", "xeon", "other")}
    notes = report.overview(machines.MachineRuns(dict.fromkeys(fed, priced), fed)).notes
    (note,) = [note for note in notes if "not a machine of its spec" in note]
    assert note.startswith("other is not")
    assert note.endswith("known: zen")


def test_machines_with_other_models_or_feeds_are_not_ranked() -> None:
    changed = {"provenance": {"fingerprint": "beef"}}
    cells = [cell("a", p50=4.0), other_shape(cell("a", p50=9.0))]
    changed_cells = [cell("a", p50=2.0, result=changed), other_shape(cell("a", p50=3.0, result=changed))]
    for overview in (of(zen=cells, xeon=changed_cells), of(feeds=["one", "other"], zen=cells, xeon=cells)):
        overall = [line for line in overview.conclusions if "overall" in line]
        assert len(overall) == 2
        assert all("xeon not ranked, since the model or the feeds differ from zen" in line for line in overall)
        assert not overview.means


def test_unknown_feeds_are_not_marked() -> None:
    runs = {"zen": run(cell("a", p50=4.0)), "xeon": run(cell("a", p50=8.0))}
    fed = {"zen": {runs["zen"].cells[0].id: "one"}, "xeon": {}}
    overview = report.overview(machines.MachineRuns(runs, fed))
    assert [value.text for value in overview.blocks[0].rows["a fp32"]] == ["4.00", "8.00"]


def test_winners_are_named_where_rounds_show_them() -> None:
    overview = of(zen=[cell("a", p50=4.0), cell("b", p50=8.0)], xeon=[cell("a", p50=12.0), cell("b", p50=6.0)])
    on_zen, on_xeon, overall = overview.conclusions
    assert on_zen.startswith("m, 8x128 on zen: a fp32 is the fastest")
    assert on_xeon.startswith("m, 8x128 on xeon: b fp32 is the fastest")
    assert overall == "m, 8x128 overall: a fp32 on zen is the fastest: the fastest on xeon takes 1.50 x as long."
    (p50, *_) = overview.blocks
    assert [value.leads for value in p50.rows["a fp32"]] == [True, False]


@pytest.mark.parametrize(
    ("xeon", "expected"),
    [
        ([cell("a", p50=4.01)], "these runs cannot tell it from the fastest on xeon"),
        ([cell("a", p50=4.8), cell("b", p50=9.0), cell("a~control", p50=6.0)], "cannot tell it"),  # below its noise
        ([cell("a", p50=9.0, medians=[9, 9.1])], "too few undisturbed rounds"),
        ([cell("a", p50=1.0, status="parity-failed", reason="wrong")], None),
    ],
)
def test_doubtful_winners_are_not_named(xeon: list[CellResult], expected: str | None) -> None:
    overall = [line for line in of(zen=[cell("a", p50=4.0)], xeon=xeon).conclusions if "overall" in line]
    assert len(overall) == (expected is not None)
    assert expected is None or expected in overall[0]


def test_geometric_means_cover_what_all_machines_have() -> None:
    both = [cell("a", p50=4.0), other_shape(cell("a", p50=9.0))]
    half = [cell("a", p50=2.0), other_shape(cell("a", "error", reason="broken"))]
    overview = of(zen=both, fast=[cell("a", p50=1.0), other_shape(cell("a", p50=4.0))], half=half)
    means, speed_ups = overview.means
    assert [value.number for value in means.rows["a fp32, 1 of 2"]] == [pytest.approx(mean) for mean in (4, 1, 2)]
    overview = of(zen=both, fast=[cell("a", p50=1.0), other_shape(cell("a", p50=4.0))])
    means, speed_ups = overview.means
    assert [value.number for value in means.rows["a fp32"]] == [pytest.approx(6.0), pytest.approx(2.0)]
    assert speed_ups.rows["a fp32"][1].number == pytest.approx(3.0)
    low, high = 6.0 * 0.99 / (2.0 * 1.01), 6.0 * 1.01 / (2.0 * 0.99)
    assert speed_ups.rows["a fp32"][1].text == f"3.00 x ({low:.2f} to {high:.2f})"
    assert "a fp32 on fast has the lowest geometric mean" in overview.conclusions[-1]


def test_a_slower_cell_leads_no_means() -> None:
    """``fast`` has no mean: the other machine has it at another shape only, or not at all of them."""
    cells = [cell("fast", p50=1.0), cell("slow", p50=3.0)]
    cells += [other_shape(small) for small in cells]
    third = cells[0].model_copy(update={"shape": "2x2", "id": cells[0].id.replace("8x128", "2x2")})
    (means,) = of(zen=cells, xeon=[third]).means
    assert {name: row[0].leads for name, row in means.rows.items()} == {"slow fp32, 2 of 3": False}
    shown = of(zen=cells, xeon=[cell("fast", p50=2.0), cell("slow", p50=4.0), other_shape(cell("slow", p50=4.0))])
    assert {name: [value.leads for value in row] for name, row in shown.means[0].rows.items()} == {
        "fast fp32, 1 of 2": [False, False],
        "slow fp32": [False, True],
    }
    assert not [line for line in shown.conclusions if "lowest geometric mean" in line]


def test_a_geometric_mean_is_in_its_interval() -> None:
    # The median of both cells is 1, and the geometric mean of four rounds is 3.
    cells = [cell("a", p50=1.0, medians=[1, 1, 1, 9, 9]), other_shape(cell("a", p50=1.0, medians=[9, 9, 1, 1, 1]))]
    means, _ = of(zen=cells, fast=cells).means
    shown, low, high = map(float, re.findall(r"[0-9.]+", means.rows["a fp32"][0].text))
    assert (low, shown, high) == (1.0, 3.0, 3.0)


def test_rejects_what_cannot_be_merged(tmp_path: Path) -> None:
    first, second, same = tmp_path / "one", tmp_path / "other", tmp_path / "same"
    for out, label in ((first, "x"), (second, "y"), (same, "x")):
        out.mkdir()
        RunFolder(out).write_run(record(cell(label)))
    cases = {
        "no cell in common": ([str(first), str(second)], tmp_path / "out"),
        "Two machines have the name 'one'": ([str(first), f"one={second}"], tmp_path / "out"),
        "cannot name a machine": ([f"a/b={first}", str(second)], tmp_path / "out"),
        "is not the folder of a run": ([str(first), str(tmp_path / "none")], tmp_path / "out"),
        "is not empty": ([f"a={first}", f"b={same}"], second),
        "is inside": ([str(first), f"b={same}"], first / "machines"),
        "is a file": ([str(first), f"b={same}"], first / "run.json" / "x"),
        "is the same folder as": ([str(first), f"b={second}/../one"], tmp_path / "out"),
    }
    for message, (folders, out) in cases.items():
        with pytest.raises(SpecError, match=message):
            machines.merge(folders, out)
    assert not (tmp_path / "out").exists()


def test_the_run_of_one_machine_may_have_a_folder_machines(tmp_path: Path) -> None:
    (tmp_path / "machines").mkdir()
    RunFolder(tmp_path).write_run(record(cell("x")))
    assert [*machines.read(tmp_path).runs] == [tmp_path.name]
