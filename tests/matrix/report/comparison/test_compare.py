import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from isorun.errors import SpecError
from isorun_matrix.report.comparison import junit
from isorun_matrix.report.comparison.compare import Comparison, compare, regressions
from isorun_matrix.results.records import CellResult
from matrix_results import CPU, ENVIRONMENT, cell, printed, run
from matrix_runs import SLOW, Isorun, spec_file


def timed(label: str, p50: float, spread: float = 1.0, status: str = "ok", **more: Any) -> CellResult:
    """A cell whose rounds differ by ``spread`` times a percent."""
    medians = [p50 * (1 + spread * step / 100) for step in (-1, 0, 1, -0.5, 0.7)]
    return cell(label, status, p50, medians=medians, **more)


ALL = (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (timed("x", 10), timed("x", 20), "slower"),
        (timed("x", 20), timed("x", 10), "faster"),
        (timed("x", 10, spread=40), timed("x", 12, spread=40), "same"),  # the rounds overlap
        (timed("x", 10, spread=0.1), timed("x", 10.1, spread=0.1), "same"),  # too little
        (timed("x", 10), cell("x", "ok", 20.0, medians=[20, 20.1]), "too few rounds"),
        (timed("x", 10), cell("x", "ok", 20.0, medians=[20, 20.1], disturbed=(1, 2)), "too few rounds"),
        (timed("x", 10), timed("x", 12), "same"),  # one run of each: sessions may differ as much
        (timed("x", 10), timed("x", 20, status="parity-failed"), None),
        (cell("x", "pending"), timed("x", 20), None),
    ],
)
def test_verdicts(before: CellResult, now: CellResult, expected: str | None) -> None:
    (compared,) = compare([run(before), run(now)]).cells
    change = compared.changes[1]
    assert (change and change.verdict) == expected


def test_disturbed_rounds_are_compared_by_cpu_time() -> None:
    (compared,) = compare([run(timed("x", 10)), run(timed("x", 10, disturbed=ALL))]).cells
    change = compared.changes[1]
    assert change is not None
    assert (change.of, change.ratio, change.verdict) == ("cpu", 1.0, "same")
    cpu = compare([run(timed("x", 10)), run(timed("x", 20, disturbed=ALL))])
    assert [how for _, _, how in regressions(cpu, 10)] == [
        "CPU time of a run is 2.00 x that of run 1; chance and sessions explain up to 1.32 x"
    ]


@pytest.mark.parametrize(("twin", "expected"), [(1.0, "slower"), (1.5, "same")])
def test_a_change_has_to_exceed_the_noise_of_its_run(twin: float, expected: str) -> None:
    before, now = (run(timed("x", p50), timed("x~control", p50 * twin)) for p50 in (10, 14.5))
    (compared,) = compare([before, now]).cells
    assert compared.verdict(1) == expected


def test_one_changed_cell_of_many_is_found() -> None:
    cells = [timed(f"c{number}", 10 + number) for number in range(16)]
    comparison = compare([run(*cells), run(timed("c0", 15), *cells[1:])])
    assert [cell.verdict(1) for cell in comparison.cells] == ["slower", *["same"] * 15]


def test_history_shows_how_much_sessions_differ() -> None:
    before, now = run(timed("x", 10)), run(timed("x", 11.5))
    alike = [run(timed("x", p50)) for p50 in (10.1, 9.9, 10.05)]
    apart = [run(timed("x", p50)) for p50 in (11.0, 9.0, 12.0)]
    alone, known, unsteady = (compare([before, now], history) for history in ((), alike, apart))
    assert [comparison.cells[0].verdict(1) for comparison in (alone, known, unsteady)] == ["same", "slower", "same"]
    assert regressions(known, 10)
    assert not regressions(unsteady, 10)
    assert "isorun matrix ab" in shown(alone, 80)
    assert "4 runs" in shown(known, 80)
    assert known.as_document()["sessions"]["runs"] == 4


def test_more_runs_than_two_show_how_much_sessions_differ() -> None:
    same = [run(timed("x", p50), folder=f"/run{p50}") for p50 in (10, 14, 18)]
    comparison = compare(same)
    assert comparison.sessions.runs == 3
    assert comparison.cells[0].verdict(2) == "same"
    changed = run(timed("x", 18), packages={"onnx": "2"})
    assert compare([*same[:2], changed]).sessions.runs == 0


def test_finds_the_settings_that_differ() -> None:
    gpu = {"name": "a GPU", "driver": "1", "clock_mhz": 300, "throttled_by": [], "compute_capability": "9.0"}
    gpu |= {"memory_mib": 1, "used_mib": 1, "most_clock_mhz": 1}
    first = run(
        timed("x", 10),
        spec={"feeds": 3, "backends": [{"label": "x", "threads": None, "options": {"shapes": ["1x8"]}}]},
        load_average=[0.1],
        gpus=[gpu],
        packages={"isorun": "1", "onnx": "1", "gone": "1"},
    )
    second = run(
        timed("x", 10, result={"provenance": {"fingerprint": "beef"}}),
        spec={
            "feeds": 4,
            "models": {"m": {"path": "/elsewhere/m.onnx"}},
            "backends": [
                {"label": "new", "threads": 3},
                {"label": "x", "threads": 2, "options": {"shapes": ["1x8", "2x8"]}},
            ],
        },
        load_average=[7.0],
        gpus=[{**gpu, "driver": "2", "clock_mhz": 1200}],
        packages={"isorun": "1", "onnx": "2", "new": "1"},
    )
    unchanged, changed = compare([first, second]).differences
    assert unchanged == {}
    assert changed == {
        "feeds": (3, 4),
        "backends.x.threads": (None, 2),
        "backends.x.options.shapes": (["1x8"], ["1x8", "2x8"]),
        "models.m.fingerprint": ("f00d", "beef"),
        "gpus.a GPU.driver": ("1", "2"),
        "packages.onnx": ("1", "2"),
        "packages.gone": ("1", None),
        "packages.new": (None, "1"),
    }


def test_finds_settings_that_one_run_alone_has() -> None:
    gpu = dict.fromkeys(("driver", "compute_capability", "memory_mib", "used_mib", "clock_mhz", "most_clock_mhz"))
    lengths = {"distribution": "uniform", "seed": 1}
    first = run(
        timed("x", 10),
        spec={
            "backends": [{"label": "x.t1", "options": {}}],
            "shapes": [{"name": "8x128", "lengths": "full", "dims": {}}],
        },
    )
    second = run(
        timed("x", 10),
        spec={
            "backends": [{"label": "x.t1", "options": {"level": 0}}, {"label": "new", "options": {"level": 1}}],
            "shapes": [{"name": "8x128", "lengths": lengths, "dims": {"w": 2}}, {"name": "1x1", "dims": {"w": 3}}],
            **{"quality": {"minimum": 0.9}, "tolerances": {"fp32": {"rms": 0.1}}, "time_limit": 9.0},
        },
        gpus=[{"name": "a GPU", "throttled_by": None, **gpu}],
    )
    expected = {
        "backends.x.t1.options.level": (None, 0),
        "shapes.8x128.lengths": ("full", None),
        "shapes.8x128.lengths.distribution": (None, "uniform"),
        "shapes.8x128.lengths.seed": (None, 1),
        "shapes.8x128.dims.w": (None, 2),
        "quality.minimum": (None, 0.9),
        "tolerances.fp32.rms": (None, 0.1),
        "time_limit": (None, 9.0),
        "gpus.a GPU.name": (None, "a GPU"),
    }
    assert compare([first, second]).differences[1] == expected
    reverse = {name: values[::-1] for name, values in expected.items()}
    assert compare([second, first]).differences[1] == reverse


def shown(comparison: Comparison, width: int) -> str:
    return printed(comparison.as_tables(), width)


def test_names_that_look_like_markup_are_shown_literally() -> None:
    cells = [cell("x", "ok", 10, label="[bold]|<i>\n")]
    comparison = compare([run(*cells, folder="/[red]<b>|`\x1b[31m"), run(*cells)])
    text = shown(comparison, 120)
    assert r"run 1: /[red]<b>|`\x1b[31m" in text
    assert "[bold]|<i>" in text
    text = comparison.as_tables().as_markdown()
    assert r"- run 1: /\[red\]\<b\>\|\`\\x1b\[31m" in text
    assert r"| \[bold\]\|\<i\> |" in text


def test_regressions() -> None:
    first = run(*(timed(name, 10) for name in "pqsu"), cell("lacking", "unavailable"))
    second = run(timed("p", 10.9), timed("q", 15.1), timed("s", 5), timed("new", 50), cell("lacking", "unavailable"))
    regressed = regressions(compare([first, second]), 10)
    assert [(name.split("/")[2], number) for name, number, _ in regressed] == [("q", 1), ("u", 1)]
    for word, (_, _, how) in zip(("1.51", "missing"), regressed, strict=True):
        assert word in how


def test_junit_has_a_test_for_each_cell_that_was_ok() -> None:
    first = run(timed("p", 10), timed("q", 10), cell("gone", "unavailable"))
    comparison = compare([first, run(timed("p", 20), timed("q", 10))])
    (suite,) = ElementTree.fromstring(junit.render(comparison, regressions(comparison, 10)))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    cases = {case.get("name"): [failure.get("message") for failure in case] for case in suite}
    assert cases["q fp32"] == []
    assert "2.00 x" in str(cases["p fp32"][0])


def test_rejects_runs_without_a_common_cell() -> None:
    with pytest.raises(SpecError, match=r"/b .*m/8x128/x/fp32.*m/8x128/y/fp32"):
        compare([run(timed("x", 1)), run(timed("y", 1), folder="/b")])


def test_quality_has_a_column_with_its_interval_where_it_was_measured() -> None:
    def kept(value: float) -> dict[str, Any]:
        interval = {"value": value, "low": value - 0.01, "high": 1.0}
        return {"quality": dict.fromkeys(("recall", "first", "tau"), interval) | {"k": 10, "queries": 300}}

    page = compare([run(timed("x", 10, result=kept(0.97))), run(timed("x", 11, result=kept(0.92)))])
    assert "0.970 (0.960-1.000)" in shown(page, 120)
    assert "0.920 (0.910-1.000)" in shown(page, 120)
    assert "| quality |" in page.as_tables().as_markdown()
    assert "quality" not in shown(compare([run(timed("x", 10)), run(timed("x", 11))]), 120)


def test_tables_of_a_comparison() -> None:
    long = "a CPU | with a name " + "that goes on " * 5
    comparison = compare(
        [
            run(timed("x", 10), timed("y", 10), cell("z", "pending"), folder="/a"),
            run(timed("x", 20), cell("y", "crashed"), timed("n", 5), cpu={**ENVIRONMENT["cpu"], **CPU, "model": long}),
        ]
    )
    lines = [" ".join(line.split()) for line in shown(comparison, 80).splitlines()]
    assert lines[0].startswith("run 1: /a, a CPU, 2 cores, ")
    assert "backend precision run p50 ms p99 ms tokens/s max rel time status" in lines
    table = lines[lines.index("m, 8x128") :]
    assert table[1:9] == [
        "x fp32 1 10.0 - 102,000 2.0e-06 ok",
        "2 20.0 - 51,200 2.0e-06 2.00 x slower",
        "y fp32 1 10.0 - 102,000 2.0e-06 ok",
        "2 - - - - crashed",
        "z fp32 1 - - - - pending",
        "2 - - - - missing",
        "n fp32 1 - - - - missing",
        "2 5.00 - 205,000 2.0e-06 ok",
    ]
    assert lines[-1].endswith("1 slower, 1 crashed (was ok), 1 missing, 1 new")
    text = comparison.as_tables().as_markdown()
    assert re.search(r"^  - cpu\.model: a CPU in run 1, a CPU \\\| with a name that .*\.\.\. in run 2$", text, re.M)
    assert "|  |  | 2 | 20.0 | - | 51,200 | 2.0e-06 | 2.00 x | slower |" in text
    assert {row.replace(r"\|", "").count("|") for row in text.splitlines() if row.startswith("|")} == {10}


@pytest.mark.long
def test_compares_two_runs_from_end_to_end(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    for name, seconds in (("quick", 0.001), ("slow", 0.2)):
        spec = spec_file(tmp_path, SLOW + f"  - {{name: fake, options: {{seconds: {seconds}}}}}\n")
        assert isorun("run", spec, "--out", tmp_path / name).returncode == 0
    done = isorun("compare", tmp_path / "quick", tmp_path / "slow", "--format", "json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["runs"][1]["differences"] == {"backends.fake.options.seconds": [0.001, 0.2]}
    assert "backends.fake.options.seconds" in isorun("compare", tmp_path / "quick", tmp_path / "slow").stdout
    for other in (tmp_path, tmp_path / "quick"):  # no run, and itself
        assert isorun("compare", tmp_path / "quick", other).returncode == 2
