"""HTML reports in Chromium, without network."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isorun_matrix.report import html
from isorun_matrix.results.records import Run
from matrix_results import cell, run

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")

Open = Callable[..., Any]


def sixty() -> Run:
    """Three models, four shapes, five cells each: the fourth has wrong outputs, the fifth does not run."""
    backends = (("ort-cpu", "fp32"), ("ort-cpu", "int8"), ("openvino", "bf16"), ("ort-ep:some-plugin", "fp32"))
    cells = []
    for model in ("minilm", "bert-base-uncased", "deberta-v3-small"):
        for batch, sequence in ((1, 16), (1, 128), (8, 128), (32, 128)):
            shape = f"{batch}x{sequence}"
            place = {"model": model, "shape": shape, "batch": batch, "sequence": sequence}
            for index, (label, precision) in enumerate(backends):
                wrong = {"reason": "y: rms is 1, above 2e-05"} if index == 3 else {}
                more = {"id": f"{model}/{shape}/{label}/{precision}", "precision": precision, **place, **wrong}
                p50 = batch * sequence * 123.4 / (index + 1)
                cells.append(cell(label, "parity-failed" if wrong else "ok", p50, **more))
            cells.append(cell("gone", "unavailable", reason="no device", id=f"{model}/{shape}/gone", **place))
    return run(*cells, spec={"models": {name: {"path": "/m.onnx"} for name in {result.model for result in cells}}})


REPORTS: dict[str, Callable[[], tuple[Run, ...]]] = {
    "one workload": lambda: (run(cell("quick", "ok", 4.5), cell("ort-openvino", "parity-failed", 9.0, reason="y")),),
    "sixty cells": lambda: (sixty(),),
    "two runs": lambda: (run(cell("quick", "ok", 4.5)), run(cell("quick", "ok", 4.6), folder="/again")),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a report; fails if the page reports an error or requests anything but itself."""
    problems: list[str] = []
    pages = []

    def open_report(report: str) -> Any:
        path = tmp_path / "report.html"
        path.write_text(html.render(*REPORTS[report]()))
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda sent: problems.append(sent.url) if sent.url != path.as_uri() else None)
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield open_report
    for page in pages:
        page.close()
    assert problems == []


def test_draws_every_plot(opened: Open) -> None:
    plots = opened("sixty cells").locator("[data-plot]")
    assert plots.count() == 3 + 12 * 2
    for plot in plots.all():
        plot.scroll_into_view_if_needed()
        plot.locator(".trace").first.wait_for(timeout=20_000)


# Elements that reach beyond the page, or whose content is wider than they are; the window or paper ends at the body.
CUT = """() => [...document.querySelectorAll("body, body *")].filter(element => {
  const box = element.getBoundingClientRect();
  if (!box.width || element.closest("svg, script, pre, select, details:not([open]) > dl")) return false;
  const clips = getComputedStyle(element).overflowX !== "visible" && element.scrollWidth > element.clientWidth + 1;
  return clips || box.right > document.documentElement.clientWidth + 1;
}).map(element => element.outerHTML.slice(0, 200))"""


@pytest.mark.parametrize("report", REPORTS)
def test_nothing_is_cut_on_screen_or_paper(opened: Open, report: str) -> None:
    page = opened(report)
    for width in (1200, 420):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(CUT) == [], width
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 1000})  # A4 between its margins
    assert page.evaluate(CUT) == []
    widths = page.eval_on_selector_all(".plot .main-svg", "plots => plots.map(plot => plot.clientWidth)")
    assert widths
    assert max(widths) <= 700


def test_filters_and_sorts_cells(opened: Open) -> None:
    page = opened("sixty cells")
    rows = page.locator("#all tbody tr:visible")

    def column(label: str) -> list[str]:
        return page.eval_on_selector_all(
            f"#all tbody tr:not([hidden]) td[data-label='{label}']", "cells => cells.map(cell => cell.textContent)"
        )

    assert rows.count() == 60
    page.get_by_role("searchbox").fill("int8 8x128")
    assert rows.count() == 3
    assert page.locator("output").inner_text() == "3 of 60 cells"
    page.get_by_label("model").select_option("minilm")
    assert (column("model"), column("precision")) == (["minilm"], ["int8"])
    page.get_by_role("searchbox").fill("")
    assert rows.count() == 20
    head = page.locator("#all th", has_text="p50 ms")
    head.click()
    ascending = [float(text.replace(",", "")) for text in column("p50 ms")[:4]]
    assert ascending == sorted(ascending)
    assert column("p50 ms")[-4:] == ["-"] * 4
    head.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column("p50 ms")[-4:] == ["-"] * 4
    assert column("p50 ms")[0] != "-"


def test_the_first_screen_answers_which_backend_to_use(opened: Open) -> None:
    page = opened("sixty cells")
    answers = page.locator(".answers tbody tr")
    assert answers.count() == 12
    assert "openvino bf16" in answers.first.inner_text()
    assert answers.first.locator("[data-label=verdict]").inner_text() == "fastest"
    assert answers.first.locator("[data-label=ratio]").inner_text().startswith("1.")
    assert page.locator(".answers").bounding_box()["y"] < 300
    answers.last.get_by_role("link").last.click()
    page.wait_for_function("location.hash === '#deberta-v3-small/32x128'")
