"""Every form of a report, from one document with a cell of each kind."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from rich.console import Console

from isorun_matrix.report import html, markdown, terminal
from isorun_matrix.report import summary as view

NOTHING = dict.fromkeys(
    ["parity", "latency_ms", "spread_ms", "throughput", "load_ms", "first_run_ms", "memory_mib", "provenance"]
)


def cell(label: str, status: str, p50: float | None = None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": f"m/8x128/{label}/fp32",
        "model": "m",
        "shape": "8x128",
        "backend": "b",
        "label": label,
        "precision": "fp32",
        "batch": 8,
        "sequence": 128,
        "options": {},
        "status": status,
        "reason": None,
        "remedy": None,
        "log": None,
        **NOTHING,
    }
    if p50 is not None:
        verdict = "pass" if status == "ok" else "fail"
        found |= {
            "latency_ms": {"samples": 20, "p50": p50, "p90": p50 * 1.1, "p95": p50 * 1.2, "p99": None}
            | {"mean": p50, "std": 0.1, "notes": ["p99 needs 100 samples; there are 20"]},
            "spread_ms": {"p5": p50 * 0.9, "p25": p50 * 0.95, "p50": p50, "p75": p50 * 1.05, "p95": p50 * 1.2},
            "throughput": {"requests_per_s": 1000 / p50, "rows_per_s": 8000 / p50, "tokens_per_s": 1024000 / p50},
            "load_ms": 250.0,
            "first_run_ms": p50 * 3,
            "memory_mib": {"before_load": 35.0, "peak": 234.5},
            "parity": {"verdict": verdict, "max_abs": 1e-6, "max_rel": 2e-6, "rms": 1e-7, "cosine": 1.0, "argmax": 1.0}
            | {"tolerance": {"max_rel": 2e-4, "rms": 2e-5, "cosine": 1 - 1e-8}},
            "provenance": {"device": "a CPU", "threads": 2, "precision": "fp32", "operators": {"CPU": {"MatMul": 7}}}
            | {"fused": {"SelfAttention": 3}, "dialect": "onnx", "cache": "found", "versions": {"isorun": "1"}}
            | {"fingerprint": "f00d"},
            "warmup_runs": 3,
            "load_average": [0.1, 0.2, 0.3],
            "notes": ["feeds-0: Cut to 128 tokens"],
        }
    return {**found, **more}


@pytest.fixture
def document() -> dict[str, Any]:
    cells = [
        cell("slow", "ok", 20.0),
        cell("quick", "ok", 4.5),
        cell("wrong", "parity-failed", 1.0, reason="y: rms is 1, above 2e-05"),
        cell("gone", "unavailable", reason="no device", remedy="Buy one."),
        cell("dead", "crashed", reason="the process died of SIGSEGV", log="Fatal <b>error</b> & more"),
        cell("later", "pending"),
    ]
    environment = {
        "cpu": {"model": "a CPU", "architecture": "x86_64", "cores": 4, "usable_cores": 2, "cgroup_quota": 1.5}
        | {"flags": ["avx2"], "governor": None},
        "memory_mib": 2048,
        "load_average": [0.5, 0.4, 0.3],
        "os": "an OS",
        "kernel": "6",
        "python": "CPython 3",
        "packages": {"isorun": "1"},
    }
    return {"schema": 1, "environment": environment, "cells": cells}


RUN = {
    "spec": {"models": {"m": {}}, "reference": {"backend": "reference", "precision": "fp64"}},
    "created": "2026-11-21T",
}


def test_the_fastest_is_the_fastest_that_is_right(document: dict[str, Any]) -> None:
    (group,) = view.groups(document)
    assert group.fastest == "m/8x128/quick/fp32"
    nothing = copy.deepcopy(document)
    nothing["cells"] = nothing["cells"][2:]
    assert view.groups(nothing)[0].fastest is None


def shown(document: dict[str, Any], width: int = 200) -> str:
    console = Console(width=width, record=True, file=None, color_system=None)
    with console.capture() as capture:
        console.print(terminal.render(document, console.width))
    return capture.get()


def test_none_is_fastest_where_the_medians_cannot_be_told_apart(document: dict[str, Any]) -> None:
    slow, quick = document["cells"][:2]
    slow["latency_ms"]["p50_interval"], quick["latency_ms"]["p50_interval"] = [4.6, 30.0], [4.4, 4.6]
    (group,) = view.groups(document)
    assert (group.fastest, group.tied) == (quick["id"], {slow["id"]})
    assert [view.status(each, group) for each in group.cells[:3]] == ["ok, tied", "ok, tied", "parity-failed"]
    assert "**ok, tied**" in markdown.render(document)
    assert "tied with slow fp32" in html.render(document, RUN)
    slow["latency_ms"]["p50_interval"] = [4.7, 30.0]
    (group,) = view.groups(document)
    assert (group.tied, view.status(group.cells[1], group)) == (frozenset(), "ok, fastest")


def test_figures_that_something_disturbed_are_said(document: dict[str, Any]) -> None:
    slow, quick, wrong = document["cells"][:3]
    slow["waited"], quick["waited"], wrong["waited"] = 0.35, 0.049, None
    slow["latency_ms"]["p50_interval"] = [18.0, 24.0]
    quick["latency_ms"]["p50_interval"] = [4.0, 5.0]
    _, disturbed, unsteady = view.notes(view.groups(document)[0])
    assert disturbed.startswith("disturbed: slow fp32 (35%) of the time a thread waited for a core")
    assert unsteady.endswith(": slow fp32 (18.0 to 24.0 ms)")
    assert disturbed in shown(document)
    for number in range(4):
        document["cells"].append(cell(f"c{number}", "ok", 5.0, waited=0.1 * number + 0.1))
    said = view.notes(view.groups(document)[0])[1]
    assert said.startswith("disturbed: c3 fp32 (40%), slow fp32 (35%), c2 fp32 (30%) and 2 more of the time")
    assert f"- {unsteady}" in markdown.render(document)
    assert "35.0% of the time a thread waited for a core" in html.render(document, RUN)


def test_a_reason_is_given_once_for_all_its_cells(document: dict[str, Any]) -> None:
    document["cells"] += [cell(f"c{index}", "skipped", reason="no model") for index in range(5)]
    whole = "m/8x128/c0/fp32, m/8x128/c1/fp32, m/8x128/c2/fp32 and 2 more: no model"
    assert (shown(document).count("no model"), whole in shown(document)) == (1, True)
    for text in (markdown.render(document), html.render(document, RUN)):
        assert text.count("no model") == 1
        assert "c0 fp32, c1 fp32, c2 fp32 and 2 more" in text


def test_sections_of_names_that_are_alike_have_links_of_their_own(document: dict[str, Any]) -> None:
    document["cells"] = [cell("b", "ok", 1.0, model=name, id=name) for name in ("a.1", "a-1")]
    page = html.render(document, RUN)
    links = re.findall(r'<a href="#([^"]*)">', page)
    assert links == re.findall(r'<h2 id="([^"]*)">', page) == ["a.1/8x128", "a-1/8x128"]


def test_time_on_the_device_is_said_below_the_table(document: dict[str, Any]) -> None:
    document["cells"][1]["device_ms"] = {"samples": 100, "p50": 0.4321, "p99": 0.5}
    said = "quick fp32: p50 0.432 ms, p99 0.500 ms on the device alone, by its own events"
    assert view.notes(view.groups(document)[0]) == ["feeds-0: Cut to 128 tokens", said]
    assert f"- {said}\n" in markdown.render(document)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.00012, "1.2e-04"),
        (0.0123, "0.0123"),
        (4.567, "4.57"),
        (99.96, "100"),
        (78.91, "78.9"),
        (12345.0, "12,300"),
        (999_499.0, "999,000"),
        (999_500.0, "1.00M"),
        (1_612_345.0, "1.61M"),
        (1, "1.00"),
    ],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert view.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (1.0, "1.000000"), (1 - 8e-13, "1 - 8e-13"), (0.99974, "0.999740"), (-1, "-1.000000")],
)
def test_cosines(value: float | None, text: str) -> None:
    assert view.cosine(value) == text


def test_explanations_are_one_line(document: dict[str, Any]) -> None:
    said = [view.explanation(each) for each in document["cells"]]
    assert said == [
        None,
        None,
        "y: rms is 1, above 2e-05",
        "no device. Buy one.",
        "the process died of SIGSEGV",
        None,
    ]
    assert view.explanation(cell("x", "error", reason="two\n  lines")) == "two lines"
    assert view.tally(document) == "2 ok, 1 parity-failed, 1 unavailable, 1 crashed, 1 pending"


def test_the_terminal_s_table_fits_80_columns(document: dict[str, Any]) -> None:
    console = Console(width=80, record=True, quiet=False, file=None, color_system=None)
    with console.capture() as capture:
        console.print(terminal.render(document, console.width))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == "backend precision p50 ms p90 p99 tokens/s max rel MiB status".split()  # noqa: SIM905
    assert [line.split()[-1] for line in lines[3:9]] == [
        "ok",
        "fastest",
        "parity-failed",
        "unavailable",
        "crashed",
        "pending",
    ]
    assert "m/8x128/gone/fp32: no device. Buy one." in lines
    assert lines[-1].startswith("2 ok")


def test_no_number_is_on_two_lines(document: dict[str, Any]) -> None:
    document["cells"][1]["label"] = "ort-openvino@an-environment"
    whole = shown(document)
    figures = re.findall(r"(?<= )[\d.,e-]*\d[\d.,e-]*(?= )", whole[whole.index("m, 8x128") : whole.index("pending")])
    narrow = shown(document, 80)
    assert len(figures) > 12
    assert [figure for figure in figures if f" {figure} " not in narrow] == []
    assert "ok, fastest" in narrow
    lines = shown(document, 50).splitlines()
    assert [line[:4] for line in lines if " fp32 " in line] == ["slow", "ort-", "wron", "gone", "dead", "late"]


def test_markdown(document: dict[str, Any]) -> None:
    text = markdown.render(document)
    assert "| **quick** | fp32 | 4.50 | 4.95 | - | 228,000 | 250 | 234 | 2.0e-06 | 1.000000 | **ok, fastest** |" in text
    assert "- gone fp32: no device. Buy one." in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {12}
    awkward = copy.deepcopy(document)
    awkward["cells"][3]["reason"] = "a | b * c < d"
    assert r"a \| b \* c \< d" in markdown.render(awkward)


def test_every_report_says_what_ran_in_an_environment(document: dict[str, Any]) -> None:
    document["cells"][0] |= {"environment": "ovn", "label": "slow@ovn"}
    document["cells"][3] |= {"environment": "bad"}
    document["environment"]["environments"] = {
        "ovn": {"python": "3.11.7", "install": ["x"], "packages": {"x": "1", "numpy": "2"}},
        "bad": {"failure": "no such package"},
    }
    console = Console(width=120, file=None, color_system=None)
    with console.capture() as capture:
        console.print(terminal.render(document, console.width))
    said = "environment ovn: Python 3.11.7, a worker of slow@ovn; the way to it and back is in the latency"
    assert said in capture.get()
    text = markdown.render(document)
    assert f"- {said}\n- packages in ovn: x 1, numpy 2\n" in text
    assert "bad" not in text.partition("## Environment")[2]
    page = html.render(document, RUN)
    assert "<dt>environment</dt><dd>ovn</dd>" in page
    assert "<dt>packages in ovn</dt><dd>x 1, numpy 2</dd>" in page


def test_html_holds_all_that_it_needs(document: dict[str, Any]) -> None:
    page = html.render(document, RUN)
    own = page[: page.index("<script>")] + page[page.index("</head>") :]
    assert re.findall(r"""(?:src|href)=["']?(?!#)[^"'> ]+""", own) == []
    assert "@import" not in own
    assert "plotly.js v" in page
    assert "Fatal &lt;b&gt;error&lt;/b&gt; &amp; more" in own
    assert own.count("ok, fastest") == 1
    assert "no device. Buy one." in own
    assert "7 MatMul" in own
    (data,) = re.findall(r"data-plot='([^']*)'", own)
    rows = json.loads(data.replace("\\u003c", "<"))["rows"]
    assert [(row["name"], row["right"]) for row in rows] == [
        ("slow fp32", True),
        ("quick fp32", True),
        ("wrong fp32", False),
    ]


def test_a_plot_is_logarithmic_where_latencies_lie_far_apart(document: dict[str, Any]) -> None:
    (group,) = view.groups(document)
    plot = html.plot(group)
    assert plot is not None
    assert plot["log"]
    few = cell("few", "ok", 5.0)
    few["latency_ms"] |= {"samples": 19, "min": 4.0, "max": 9.0}
    drawn = html.plot(view.Group("m", "s", (few, cell("enough", "ok", 5.0)), None, frozenset()))
    assert drawn is not None
    assert [(row["p5"], row["p95"]) for row in drawn["rows"]] == [(4.0, 9.0), (4.5, 6.0)]
    near = view.Group("m", "s", (cell("a", "ok", 5.0), cell("b", "ok", 6.0)), None, frozenset())
    assert html.plot(near) == {"rows": html.plot(near)["rows"], "log": False}  # type: ignore[index]
    assert html.plot(view.Group("m", "s", (cell("a", "pending"),), None, frozenset())) is None


ODD = "[red]x[/] | `a` <b>&amp;</b> ![i](j) *k* _l_ ~~m~~ \n# n \x1b[31m \ud800"


@pytest.fixture
def odd(document: dict[str, Any]) -> dict[str, Any]:
    """A document whose every text would be markup somewhere."""
    for index, each in enumerate(document["cells"]):
        each |= {"label": ODD, "precision": ODD, "id": f"{ODD}{index}", "model": ODD, "shape": ODD, "kept": ODD}
        each |= {"reason": each["reason"] and ODD, "notes": each.get("notes") and [ODD]}
    document["environment"] |= {"os": ODD, "packages": {ODD: ODD}}
    return document


def test_markdown_shows_texts_as_they_are(odd: dict[str, Any]) -> None:
    text = markdown.render(odd)
    plain = re.sub(r"\\[!-/:-@\[-`{-~]", "", text).replace("**", "")  # what is escaped, and its own emphasis
    rows = [line for line in plain.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {12}
    assert re.findall(r"[`<>\[\]*_~&\x1b\ud800]", plain) == []
    assert [line for line in text.splitlines() if line.startswith("# ")] == ["# Backends compared"]
    assert r"\[red\]x\[/\] \| \`a\` \<b\>" in text


def test_the_terminal_shows_texts_as_they_are(odd: dict[str, Any]) -> None:
    text = shown(odd, 1000)
    assert text.count("[red]x[/] | `a` <b>&amp;</b>") > 6
    assert "\x1b" not in text
    text.encode()


def test_html_shows_texts_as_they_are(odd: dict[str, Any]) -> None:
    page = html.render(odd, {**RUN, "spec": {**RUN["spec"], "models": {ODD: {}}}})
    own = page[: page.index("<script>")] + page[page.index("</head>") :]
    assert "[red]x[/] | `a` &lt;b&gt;&amp;amp;" in own
    assert "<b>&amp;</b>" not in own
    assert own.count("<b>") == own.count("</b>") == own.count('<p class="why')
