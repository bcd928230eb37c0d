"""Every format of a report, from one run with a cell of each kind."""

import io
import json
import re
import shutil
import statistics
import subprocess
from csv import DictReader
from dataclasses import replace
from pathlib import Path

import pytest

from isorun.cli import main
from isorun_matrix.report import csv, formatting, html, markdown, plots, remarks, summary, terminal
from isorun_matrix.report.columns import columns
from isorun_matrix.report.document import escaped
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.records import CellResult, Run
from matrix_results import ENVIRONMENT, SPEC, cell, printed, rounds, run

SLOW = cell("slow", "ok", 20.0, result={"notes": ["feeds-0: truncated"]})
QUICK = cell("quick", "ok", 4.5)
WRONG = cell("wrong", "parity-failed", 1.0, reason="y: rms is 1, above 2e-05")
GONE = cell("gone", "unavailable", reason="no device", remedy="Buy one.")
DEAD = cell("dead", "crashed", reason="killed by SIGSEGV", log="Fatal <b>error</b> & more")
LATER = cell("later", "pending")
CELLS = (SLOW, QUICK, WRONG, GONE, DEAD, LATER)


def shown(document: Run, width: int = 200) -> str:
    return printed(terminal.render(document), width)


def group_of(*cells: CellResult) -> summary.Group:
    (group,) = summary.groups(cells)
    return group


def test_the_fastest_cell_is_correct() -> None:
    assert group_of(*CELLS).fastest == QUICK
    assert group_of(*CELLS[2:]).fastest is None


def test_a_conclusion_tells_wrong_outputs_from_lost_quality() -> None:
    lossy = cell("lossy", "quality-failed", 1.0, reason="keeps 0.5")
    assert group_of(QUICK, lossy).conclusion.endswith(
        "only one with correct outputs and the required quality (p50 4.50 ms)."
    )
    assert group_of(lossy).conclusion == "No cell has correct outputs and the required quality."
    assert group_of(lossy).certainty == "no correct outputs and the required quality"
    assert group_of(WRONG).conclusion == "No cell has correct outputs."
    unknown = group_of(GONE, DEAD, LATER)
    assert (unknown.conclusion, unknown.certainty) == ("No cell was measured.", "not measured")


def test_a_conclusion_names_the_cells_that_have_not_run() -> None:
    alone = "quick fp32 is the only one with correct outputs (p50 4.50 ms)."
    assert group_of(QUICK, WRONG).conclusion == alone
    assert group_of(QUICK, WRONG, LATER).conclusion == f"{alone} Not measured yet: later fp32."
    assert group_of(SLOW, QUICK, LATER).conclusion.endswith(" rounds). Not measured yet: later fp32.")


STEADY = (4.45, 4.5, 4.52, 4.48, 4.55)
VERDICTS: list[tuple[str, list[CellResult], list[str | None]]] = [
    ("slower in every round", [cell("b", "ok", 5.0)], ["fastest", "slower"]),
    ("within 5 %", [cell("b", "ok", 4.5, medians=STEADY)], ["tied", "tied"]),
    ("one way and the other", [cell("b", "ok", 4.9, medians=[3.9, 5.9, 4.2, 5.5, 4.9])], ["ambiguous", "ambiguous"]),
    ("some tied", [cell("b", "ok", 4.5, medians=STEADY), cell("c", "ok", 9.0)], ["tied", "tied", "slower"]),
    ("too few rounds", [cell("b", "ok", 9.0, medians=[9.0, 9.1])], [None, None]),
    ("disturbed", [cell("b", "ok", 9.0, disturbed=[1, 2, 3])], [None, None]),
    ("alone", [cell("b", "parity-failed", 1.0, reason="r")], [None, None]),
    (
        "less than the control differs from its twin",
        [cell("b", "ok", 5.0), cell("quick~control", "ok", 5.2)],
        ["ambiguous", "ambiguous"],
    ),
]


@pytest.mark.parametrize(("why", "others", "expected"), VERDICTS, ids=[why for why, *_ in VERDICTS])
def test_verdicts(why: str, others: list[CellResult], expected: list[str | None]) -> None:
    quick = cell("quick", "ok", 4.5, medians=[4.45, 4.5, 4.52, 4.48, 4.55])
    group = group_of(quick, *others)
    assert group.fastest == quick
    assert [group.verdict(member) for member in group.cells] == expected
    assert quick.name in group.conclusion
    assert group.certainty == (expected[0] or ("the only correct one" if why == "alone" else "too few rounds"))
    assert (group.runner_up is None) == (expected[0] is None)
    if expected[0] in ("tied", "ambiguous"):
        assert group.choice.split(" or ") == [
            member.name for member in group.cells if group.verdict(member) == expected[0]
        ]
        assert "x as long" in group.conclusion


def in_rounds(name: str, medians: dict[int, float]) -> CellResult:
    whole = cell(name, "ok", statistics.median(medians.values()), medians=[*medians.values()])
    assert whole.result is not None
    own = [replace(measured, number=number) for number, measured in zip(medians, whole.result.rounds, strict=True)]
    return whole.model_copy(update={"result": replace(whole.result, rounds=own)})


def test_rounds_with_the_same_number_in_different_sessions_are_not_common() -> None:
    apart = [{**measured, "together": "other"} for measured in rounds(STEADY)]
    group = group_of(SLOW, cell("apart", "ok", 4.5, result={"rounds": apart}))
    assert (group.verdict(group.cells[0]), group.certainty) == (None, "too few rounds")
    assert group.speed_up(group.cells[1]) is None


def test_a_leader_by_common_rounds_is_not_said_to_have_the_lowest_median() -> None:
    calm, slow = dict(enumerate([1.0, 1.01, 0.99, 1.0, 1.005], 1)), [1.31, 1.35, 1.2, 1.4, 1.25]
    kept = {1: 0.9, 2: 0.91, 3: 0.89, 4: 0.9, 6: 1.3, 7: 1.31, 8: 1.28, 9: 1.3, 10: 1.3}
    cells = in_rounds("first", calm), in_rounds("kept", kept), in_rounds("new", dict(enumerate(slow, 6)))
    group = group_of(*cells)
    assert group.fastest is cells[1]
    assert "lowest" not in group.conclusion
    assert "first fp32 has 1.00 ms" in group.conclusion


def test_cells_that_beat_each_other_in_turn() -> None:
    group = group_of(
        in_rounds("a", {1: 1.4, 2: 1.39, 3: 1.39, 4: 1.0, 5: 0.99, 6: 1.0}),
        in_rounds("b", {4: 1.2, 5: 1.19, 6: 1.2, 7: 1.0, 8: 1.0, 9: 1.0}),
        in_rounds("c", {1: 1.0, 2: 1.0, 3: 1.01, 7: 1.39, 8: 1.39, 9: 1.4}),
    )
    assert group.fastest is group.cells[1]
    assert group.certainty == "ambiguous"
    assert "lowest median" in group.conclusion
    assert "includes 1" not in group.conclusion


def test_notes_name_doubtful_figures() -> None:
    slow = cell("slow", "ok", 20.0, disturbed=[1, 3, 4])
    repeated = [measured | {"repeated": 0.5} for measured in rounds([4.5] * 5)]
    cached = cell("cached", "ok", 4.5, result={"repeated": 0.5, "rounds": repeated})
    chance = [{**repeated[0], "repeated": 1.0}, *repeated[1:]]
    by_chance = cell("chance", "ok", 4.5, result={"repeated": 0.5, "rounds": chance})
    few, disturbed, answers, noise = remarks.notes(group_of(slow, cached, by_chance, cell("slow~control", "ok", 21.0)))
    assert few.endswith("without a verdict: slow fp32 (2)")
    assert disturbed.startswith("disturbed rounds, left out unless all are: slow fp32 (3 of 5). ")
    assert answers.endswith(": cached fp32 (0.50 x)")
    assert "slow fp32" in noise
    assert noise.endswith("5.0%")
    assert disturbed in shown(run(slow))
    cold, short = (cell("c", "ok", 4.5, result={"steady": False, "warmup_runs": runs}) for runs in (0, 3))
    assert remarks.notes(group_of(cold)) == ["measured without a warm-up (`warmup`): c fp32"]
    assert "the warm-up (`seconds`) was too short" in remarks.notes(group_of(short))[0]
    assert "disturbed, left out" in html.render(run(slow))


def test_a_reason_is_shown_once_with_all_its_cells() -> None:
    skipped = run(*(cell(f"c{index}", "skipped", reason="no model") for index in range(5)))
    text = shown(skipped)
    assert text.count("no model") == 1
    assert "m/8x128/c0/fp32, m/8x128/c1/fp32, m/8x128/c2/fp32 and 2 more: no model" in text
    for text in (markdown.render(skipped), html.render(skipped)):
        assert text.count("no model") == 1
        assert "c0 fp32, c1 fp32, c2 fp32 and 2 more" in text


def test_similar_names_have_links_of_their_own() -> None:
    page = html.render(run(*(cell("b", "ok", 1.0, model=name, id=name) for name in ("a.1", "a-1"))))
    links = list(dict.fromkeys(re.findall(r'<a href="#([^"]*)">', page)))
    assert links == re.findall(r'<h2 id="([^"]*)">', page) == ["a.1/8x128", "a-1/8x128"]


def test_notes_have_the_time_on_the_device_and_remarks_on_feeds() -> None:
    device = {**vars(SLOW.result.latency_ms), "samples": 100, "p50": 0.4321, "p99": 0.5}
    feeds, times = remarks.notes(group_of(SLOW, cell("quick", "ok", 4.5, result={"device_ms": device})))
    assert feeds == "feeds-0: truncated"
    assert times.startswith("quick fp32: p50 0.432 ms, p99 0.500 ms")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((None, "-"), (0.0, "0"), (0.00012, "1.2e-04"), (0.0123, "0.0123"), (4.567, "4.57"), (99.96, "100")),
        *((78.91, "78.9"), (12345.0, "12,300"), (999_499.0, "999,000"), (999_500.0, "1.00M"), (1_612_345.0, "1.61M")),
    ],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1.000000"), (1 - 8e-13, "1 - 8e-13"), (0.99974, "0.999740"), (-1, "-1.000000")],
)
def test_cosines(value: float, text: str) -> None:
    assert formatting.cosine(value) == text


def test_explanations_are_one_line() -> None:
    assert remarks.explanation(SLOW) is None
    assert remarks.explanation(LATER) is None
    assert remarks.explanation(GONE) == "no device. Buy one."
    assert remarks.explanation(cell("x", "error", reason="two\n  lines")) == "two lines"
    assert remarks.tally(CELLS) == "2 ok, 1 parity-failed, 1 unavailable, 1 crashed, 1 pending"


def test_the_terminal_s_table_fits_80_columns() -> None:
    lines = [line.rstrip() for line in shown(run(*CELLS), 80).splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("m, 8x128: quick fp32 is the fastest (p50 4.50 ms): the next one, slow fp32,")
    header = " ".join(column.header for column in columns("terminal")).split()
    start = next(number for number, line in enumerate(lines) if line.split() == header)
    ends = [line.split()[-1] for line in lines[start + 3 : start + 9]]
    assert ends == ["ok", "fastest", "parity-failed", "unavailable", "crashed", "pending"]
    assert "m/8x128/gone/fp32: no device. Buy one." in lines
    assert lines[-1].startswith("2 ok")


def test_no_number_is_on_two_lines() -> None:
    long_named = run(SLOW, cell("ort-openvino@an-environment", "ok", 4.5), *CELLS[2:])
    whole = shown(long_named)
    figures = re.findall(r"(?<= )[\d.,e-]*\d[\d.,e-]*(?= )", whole[whole.index("\nm, 8x128") : whole.index("pending")])
    narrow = shown(long_named, 80)
    assert len(figures) > 8
    assert [figure for figure in figures if f" {figure} " not in narrow] == []
    assert "ok, fastest" in narrow
    lines = shown(long_named, 50).splitlines()
    assert [line[:4] for line in lines if " fp32 " in line][-6:] == ["slow", "ort-", "wron", "gone", "dead", "late"]


def test_markdown_tables() -> None:
    text = markdown.render(run(*CELLS))
    figures = "4.50 | 4.44 x | 4.95 | - | 20 | 228,000 | 250 | 234 | 2.0e-06 | 1.000000"
    assert f"| **quick** | fp32 | {figures} | **ok, fastest** |" in text
    assert "- gone fp32: no device. Buy one." in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {14}


def test_every_report_describes_isolated_environments() -> None:
    environments = {
        "ovn": {"python": "3.11.7", "install": ["x"], "packages": {"x": "1", "numpy": "2"}, "failure": None},
        "bad": {"failure": "no such package"},
    }
    cells = cell("slow@ovn", "ok", 20.0, environment="ovn"), cell("gone", "unavailable", environment="bad", reason="r")
    isolated = run(*cells, environments=environments)
    assert re.search(r"environment ovn: Python 3\.11\.7, .*slow@ovn", shown(isolated))
    text = markdown.render(isolated)
    assert "- packages in ovn: x 1, numpy 2\n" in text
    assert "bad" not in text.partition("## Environment")[2]
    assert "<dt>packages in ovn</dt><dd>x 1, numpy 2</dd>" in html.render(isolated)


def own_part(page: str) -> str:
    """A page without plotly's code."""
    return page[: page.index("<script>")] + page[page.index("</head>") :]


def test_html_needs_nothing_else() -> None:
    page = html.render(run(*CELLS))
    own = own_part(page)
    assert re.findall(r"""(?:src|href)=["']?(?!#)[^"'> ]+""", own) == []
    assert "@import" not in own
    assert "plotly.js v" in page
    assert "Fatal &lt;b&gt;error&lt;/b&gt; &amp; more" in own
    assert own.count("ok, fastest") == 2  # in the table of all cells, and in that of the group
    assert "no device. Buy one." in own
    assert "7 MatMul" in own
    (data,) = re.findall(r"data-plot='([^']*)'", own)
    rows = json.loads(data.replace("\\u003c", "<"))["rows"]
    assert [(row["name"], row["correct"]) for row in rows] == [
        ("slow fp32", True),
        ("quick fp32", True),
        ("wrong fp32", False),
    ]


def test_a_plot_is_logarithmic_where_latencies_differ_much() -> None:
    plot = plots.boxes(group_of(*CELLS))
    assert plot["log"]
    near = plots.boxes(group_of(cell("a", "ok", 5.0), cell("b", "ok", 6.0)))
    assert not near["log"]
    assert plots.boxes(group_of(LATER)) is None


def test_a_box_of_few_runs_spans_all_of_them() -> None:
    few = cell("few", "ok", 5.0, result={"latency_ms": {"samples": 19, "min": 4.0, "max": 9.0}})
    plot = plots.boxes(group_of(few, cell("enough", "ok", 5.0)))
    assert [(row["p5"], row["p95"]) for row in plot["rows"]] == [(4.0, 9.0), (4.5, 6.0)]


ODD = "[red]x[/] | `a` <b>&amp;</b> ![i](j) *k* _l_ ~~m~~ \n# n \x1b[31m \ud800"
ODD_READ = ODD.replace("\ud800", "?")  # as a file is read back


@pytest.fixture
def odd() -> Run:
    """A run whose every text would be markup somewhere."""
    names = {"label": ODD_READ, "precision": ODD_READ, "model": ODD_READ, "shape": ODD_READ, "kept": ODD_READ}
    cells = []
    for index, plain in enumerate(CELLS):
        content = plain.model_dump(mode="json") | names | {"id": f"{ODD_READ}{index}"}
        content["reason"] = content["reason"] and ODD_READ
        if content["result"]:
            content["result"]["notes"] = [ODD_READ]
        cells.append(CellResult.from_plain(content))
    environment = {**ENVIRONMENT, "os": ODD_READ, "packages": {ODD_READ: ODD_READ}}
    return run(*cells, spec={**SPEC, "models": {ODD_READ: {}}}, **environment)


def test_markdown_shows_texts_literally(odd: Run) -> None:
    text = markdown.render(odd)
    plain = re.sub(r"\\[!-/:-@\[-`{-~]", "", text).replace("**", "")  # without what is escaped, and its own emphasis
    assert {line.count("|") for line in plain.splitlines() if line.startswith("|")} == {14}
    assert re.findall(r"[`<>\[\]*_~&\x1b]", plain) == []
    assert len([line for line in text.splitlines() if line.startswith("# ")]) == 1
    assert r"\[red\]x\[/\] \| \`a\` \<b\>" in text
    assert escaped("\ud800").encode() == rb"\\ud800"


def test_the_terminal_shows_texts_literally(odd: Run) -> None:
    text = shown(odd, 1000)
    assert text.count("[red]x[/] | `a` <b>&amp;</b>") > 6
    assert "\x1b" not in text


def test_html_shows_texts_literally(odd: Run) -> None:
    own = own_part(html.render(odd))
    assert "[red]x[/] | `a` &lt;b&gt;&amp;amp;" in own
    assert "<b>&amp;</b>" not in own
    assert own.count("<b>") == own.count("</b>") == own.count('<p class="why')


def test_html_of_several_runs_keeps_them_apart() -> None:
    second = run(cell("slow", "ok", 1.0), folder="/b", spec={"reference": {"backend": "b", "precision": "fp32"}})
    page = own_part(html.render(run(SLOW, QUICK, folder="/a"), second))
    assert "compares every output with reference in fp64 or b in fp32, over" in " ".join(page.split())
    assert "run 1: /a" in page
    assert "run 2: /b" in page
    assert re.findall(r'<h2 id="([^"]*)">', page) == ["1/m/8x128", "2/m/8x128"]
    assert page.count("the next one, slow fp32, takes") == 1  # the run with one cell has no verdict
    assert re.findall(r'data-label="runner-up">([^<]*)<', page) == ["slow fp32", "-"]
    (ratio,) = re.findall(r'data-label="ratio">(\d[^<]*)<', page)
    assert re.fullmatch(r"[\d.]+ x \([\d.]+ to [\d.]+\)", ratio)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_of_a_page_is_valid(tmp_path: Path) -> None:
    script = html.render(run(*CELLS)).rpartition("<script>")[2].partition("</script>")[0]
    (tmp_path / "page.js").write_text(script)
    ended = subprocess.run(["node", "--check", tmp_path / "page.js"], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_plots_of_accuracy_and_of_size() -> None:
    narrow = cell("quick", "ok", 3.0, precision="int8", result={"parity": {"rms": 0.1}})
    plot = plots.accuracy(group_of(SLOW, narrow))
    assert [(series["x"], series["y"]) for series in plot["series"]] == [([20.0], [1e-7]), ([3.0], [0.1])]
    assert plots.accuracy(group_of(SLOW, QUICK)) is None
    shapes = [cell("b", "ok", 2.0 * batch, shape=f"{batch}x128", batch=batch, id=str(batch)) for batch in (1, 8)]
    wrong = cell("w", "parity-failed", 2.0, reason="r", shape="1x128", batch=1)
    (plot,) = plots.scaling(summary.groups([*shapes[::-1], wrong]))
    assert (plot["title"], plot["categories"]) == ("m: throughput", ["1x128", "8x128"])
    assert [(series["name"], series["x"], series["correct"]) for series in plot["series"]] == [
        ("b fp32", ["1x128", "8x128"], True),
        ("w fp32 (wrong outputs)", ["1x128"], False),
    ]
    right = cell("w", "ok", 9.0, shape="8x128", batch=8, id="right")
    *_, mixed = plots.scaling(summary.groups([*shapes, wrong, right]))[0]["series"]
    assert (mixed["name"], mixed["correct"]) == ("w fp32 (wrong outputs at 1x128)", True)


def test_csv_has_every_figure_of_every_cell(odd: Run) -> None:
    rows = list(DictReader(io.StringIO(csv.render([run(*CELLS), odd]))))
    assert len(rows) == 2 * len(CELLS)
    assert (rows[1]["latency_ms.p50"], rows[1]["verdict"], rows[1]["host"]) == ("4.5", "fastest", "h")
    assert float(rows[1]["speed_up"]) == pytest.approx(20 / 4.5)
    assert rows[-1]["label"] == ODD_READ
    assert not {"parity", "latency_ms", "provenance", "rounds", "notes", "load_average"} & rows[0].keys()


@pytest.mark.parametrize("place", ["run.json", "cells/of/run.json", "link.json"])
def test_a_report_does_not_replace_results(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "RUN"
    (folder / "cells" / "of").mkdir(parents=True)
    for name in ("run.json", "cells/of/run.json"):
        (folder / name).write_text("results")
    (folder / "link.json").symlink_to(folder / "run.json")
    monkeypatch.setattr(RunFolder, "run", lambda _: run(cell("a", "ok", 1.0)))
    assert main(["matrix", "report", str(folder), "--format", "csv", "--output", str(folder / place)]) == 2
    assert (folder / "run.json").read_text() == (folder / "cells/of/run.json").read_text() == "results"
    for _ in range(2):
        assert main(["matrix", "report", str(folder), "--format", "csv", "--output", str(folder / "report.csv")]) == 0
