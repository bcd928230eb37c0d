from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from isorun.errors import SpecError
from isorun_matrix.report import compare
from isorun_matrix.report import comparison_tables as compared
from isorun_matrix.report.compare import Run

Isorun = Callable[..., "subprocess.CompletedProcess[str]"]


def cell(label: str, p50: float | None = None, spread: float = 1.02, **more: Any) -> dict[str, Any]:
    """A cell whose median lies in an interval from itself over ``spread`` to itself times ``spread``."""
    found: dict[str, Any] = {"id": f"m/1x8/{label}/fp32", "model": "m", "shape": "1x8", "label": label}
    found |= {"precision": "fp32", "status": "ok" if p50 else "pending", "waited": 0.0, "latency_ms": None}
    found |= {"throughput": None, "parity": None, "provenance": None}
    if p50:
        found["latency_ms"] = {"p50": p50, "p99": None, "p50_interval": [p50 / spread, p50 * spread]}
        found["provenance"] = {"fingerprint": "f00d"}
    return found | more


def run(name: str, *cells: dict[str, Any], spec: dict[str, Any] | None = None, **environment: Any) -> Run:
    about: dict[str, Any] = {"cpu": {"model": "a CPU", "usable_cores": 2}, "packages": {"isorun": "1"}} | environment
    whole = {"models": {"m": {"path": f"/{name}/m.onnx"}}, "shapes": [{"name": "1x8"}], "backends": [], **(spec or {})}
    return Run(f"/{name}", {"created": "today", "spec": whole}, {"environment": about, "cells": list(cells)})


def verdict(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    (found,) = compare.compare([run("a", before), run("b", now)])["cells"]
    return found["runs"][1]["change"] and found["runs"][1]["change"]["verdict"]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (cell("x", 10), cell("x", 20), "slower"),
        (cell("x", 20), cell("x", 10), "faster"),
        (cell("x", 10, spread=1.5), cell("x", 20, spread=1.5), "same"),  # the intervals overlap
        (cell("x", 10, spread=1), cell("x", 10.4, spread=1), "same"),  # as two processes of one cell may
        (cell("x", 10, waited=0.3), cell("x", 20), "disturbed"),
        (cell("x", 10), cell("x", 20, waited=0.3), "disturbed"),
        (cell("x", 10), cell("x", 20, waited=None), "slower"),
        (cell("x", 10), cell("x", 20, status="parity-failed"), None),
        (cell("x"), cell("x", 20), None),
    ],
)
def test_what_a_change_is_worth(before: dict[str, Any], now: dict[str, Any], expected: str | None) -> None:
    assert verdict(before, now) == expected


def test_a_change_is_a_ratio_with_all_that_the_intervals_allow() -> None:
    comparison = compare.compare([run("a", cell("x", 10, spread=1.1)), run("b", cell("x", 20, spread=1.2))])
    change = comparison["cells"][0]["runs"][1]["change"]
    assert change["p50"] == 2
    assert change["interval"] == pytest.approx([2 / 1.32, 2 * 1.32])


def test_a_run_from_before_there_were_intervals() -> None:
    before = cell("x", 10)
    del before["latency_ms"]["p50_interval"], before["waited"]
    assert verdict(before, cell("x", 20)) == "slower"


def test_what_would_explain_a_change_is_found_and_what_never_stays_is_left_out() -> None:
    gpu = {"name": "a GPU", "driver": "1", "clock_mhz": 300, "throttled_by": []}
    first = run(
        "a",
        cell("x", 10),
        spec={"seed": 0, "backends": [{"label": "x", "threads": None}]},
        load_average=[0.1],
        gpus=[gpu],
        packages={"isorun": "1", "onnx": "1", "gone": "1"},
    )
    other = cell("x", 10)
    other["provenance"] = {"fingerprint": "beef"}
    second = run(
        "b",
        other,
        spec={"seed": 1, "backends": [{"label": "new", "threads": 3}, {"label": "x", "threads": 2}]},
        load_average=[7.0],
        gpus=[{**gpu, "driver": "2", "clock_mhz": 1200}],
        packages={"isorun": "1", "onnx": "2", "came": "1"},
    )
    one, two = compare.compare([first, second])["runs"]
    assert one["differences"] == {}
    assert two["differences"] == {
        "seed": [0, 1],
        "backends.x.threads": [None, 2],
        "models.m.fingerprint": ["f00d", "beef"],
        "gpus.a GPU.driver": ["1", "2"],
        "packages.onnx": ["1", "2"],
        "packages.gone": ["1", None],
        "packages.came": [None, "1"],
    }


def test_lists_of_a_backend_s_options_are_values() -> None:
    backends = [{"label": "x", "options": {"shapes": shapes}} for shapes in (["1x8"], ["1x8", "2x8"])]
    runs = [run(name, cell("x", 10), spec={"backends": [each]}) for name, each in zip("ab", backends, strict=True)]
    (_, differing) = compare.compare(runs)["runs"]
    assert differing["differences"] == {"backends.x.options.shapes": [["1x8"], ["1x8", "2x8"]]}


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    comparison = compare.compare(
        [run("[red]<b>|`\x1b[31m", cell("[bold]|<i>\n", 10)), run("b", cell("[bold]|<i>\n", 9))]
    )
    console = Console(width=120, file=None, color_system=None)
    with console.capture() as capture:
        console.print(compared.render(comparison, console.width))
    assert r"run 1: /[red]<b>|`\x1b[31m" in capture.get()
    assert "[bold]|<i>" in capture.get()
    text = compared.as_markdown(comparison)
    assert r"- run 1: /\[red\]\<b\>\|\`\\x1b\[31m" in text
    assert r"| \[bold\]\|\<i\> |" in text


def test_what_got_worse() -> None:
    first = run("a", *(cell(name, 10) for name in "pqrstu"), cell("lacking"))
    second = run(
        "b",
        cell("p", 10.9),
        cell("q", 11.5),
        cell("r", 11.5, waited=0.5),
        cell("s", 20, spread=3),
        cell("t", 5),
        cell("new", 50),
        cell("lacking"),
    )
    found = compare.worse(compare.compare([first, second, first]), 10)
    assert found == [
        ("m/1x8/q/fp32", 1, "p50 is 1.15 x what it was"),
        ("m/1x8/r/fp32", 1, "p50 is 1.15 x what it was; disturbed: measure again"),
        ("m/1x8/u/fp32", 1, "was ok and is not there"),
    ]


def test_runs_without_a_cell_in_common_cannot_be_compared() -> None:
    with pytest.raises(SpecError, match=r"/b has no cell of /a.*There they are m/1x8/x/fp32; here m/1x8/y/fp32"):
        compare.compare([run("a", cell("x", 1)), run("b", cell("y", 1))])


def test_how_it_is_shown() -> None:
    long = "a CPU | with a name " + "that goes on " * 5
    slower = cell("x", 20, parity={"max_rel": 1e-6}, throughput={"tokens_per_s": 400.0})
    comparison = compare.compare(
        [
            run("a", cell("x", 10), cell("y", 10), cell("z")),
            run("b", slower, cell("y", 10, status="crashed"), cell("n", 5), cpu={"model": long, "usable_cores": 1}),
        ]
    )
    console = Console(width=80, file=None, color_system=None)
    with console.capture() as capture:
        console.print(compared.render(comparison, console.width))
    lines = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert lines[0] == "run 1: /a, a CPU, 2 cores, today"
    assert "backend precision run p50 ms p99 tokens/s max rel time status" in lines
    table = lines[lines.index("m, 1x8") :]
    assert table[1:9] == [
        "x fp32 1 10.0 - - - ok",
        "2 20.0 - 400 1.0e-06 2.00 x slower",
        "y fp32 1 10.0 - - - ok",
        "2 10.0 - - - crashed",
        "z fp32 1 - - - - pending",
        "2 - - - - - not there",
        "n fp32 1 - - - - - not there",
        "2 5.00 - - - ok",
    ]
    assert lines[-1] == "run 2 beside run 1: 1 slower, 1 crashed (was ok), 1 not there, 1 new"
    text = compared.as_markdown(comparison)
    assert re.search(
        r"^  - cpu\.model: a CPU in run 1, a CPU \\\| with a name that .*\.\.\. in run 2$", text, re.MULTILINE
    )
    assert (
        "| x | fp32 | 1 | 10.0 | - | - | - |  | ok |\n|  |  | 2 | 20.0 | - | 400 | 1.0e-06 | 2.00 x | slower |" in text
    )
    assert {row.replace(r"\|", "").count("|") for row in text.splitlines() if row.startswith("|")} == {10}


def test_two_runs_from_end_to_end(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    text = """
models: {{tiny: {{path: tiny.onnx}}}}
shapes: [1x4]
reference: {{backend: fake}}
repetitions: 12
warmup: 0
backends: [{{name: fake, options: {{seconds: {}}}}}]
"""
    for name, seconds in (("quick", 0.01), ("slow", 0.2)):
        (tmp_path / f"{name}.yaml").write_text(text.format(seconds))
        assert isorun("run", tmp_path / f"{name}.yaml", "--out", tmp_path / name).returncode == 0
    assert isorun("compare", tmp_path / "quick", tmp_path / "quick", "--fail-above", 0).returncode == 0
    done = isorun("compare", tmp_path / "quick", tmp_path / "slow", "--format", "json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["runs"][1]["differences"] == {"backends.fake.options.seconds": [0.01, 0.2]}
    assert found["cells"][0]["runs"][1]["change"]["p50"] > 5
    assert "backends.fake.options.seconds: 0.01 in run 1, 0.2 in run 2" in isorun(
        "compare", tmp_path / "quick", tmp_path / "slow"
    ).stdout.replace("\n", " ")
    done = isorun("compare", tmp_path / "quick", tmp_path / "slow", "--fail-above", 100, "--format", "md")
    assert done.returncode == 1
    assert done.stdout.startswith("# Runs compared")
    assert "tiny/1x4/fake/fp32, run 2: p50 is " in done.stderr
    missing = isorun("compare", tmp_path / "quick", tmp_path)
    assert (missing.returncode, "holds no run of a matrix" in missing.stderr) == (2, True)
