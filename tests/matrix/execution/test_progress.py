import io
import time

import pytest
from rich.console import Console

from isorun.cli import console
from isorun_matrix.execution.progress import Lines
from matrix_results import cell


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What standard error, a terminal, is shown."""
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, color_system=None, width=120, markup=False, highlight=False)
    monkeypatch.setattr(console, "stderr", lambda: terminal)
    return screen


def test_a_bar_shows_names_literally(screen: io.StringIO) -> None:
    bar = Lines()
    with bar.working("Making the environment e: onnxruntime[gpu], ./x[/y]"):
        pass
    with bar.measuring(6, 2):
        bar.started("m/[red]/[/x]", part=True)
        bar.finished(cell("x", "error", id="m/[red]", reason="a [bold]reason[/] \x1b[31m"))
    shown = screen.getvalue()
    assert "Making the environment e: onnxruntime[gpu], ./x[/y]" in shown
    assert "m/[red]/[/x]" in shown
    assert r"[1/2] error         m/[red]: a [bold]reason[/] \x1b[31m" in shown
    assert "0%" in shown


def test_a_line_a_minute_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lines = Lines()
    with lines.measuring(100.0, 2):
        for step in range(1, 8):
            now = 20.0 * step
            lines.started(f"round {step}", part=True)
            lines.ended(5.0)
        now = 200.0
        lines.added(25.0)
        lines.started("round 8", part=True)
    shown = capsys.readouterr().err.splitlines()
    assert shown == [
        "10% done, about 9 min left: round 3",
        "25% done, about 6 min left: round 6",
        "28% done, about 9 min left: round 8",
    ]


def test_each_of_several_runs_counts_its_own_cells(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for _ in range(2):
        with lines.measuring(1, 1):
            lines.finished(cell("x", "ok", 1.0))
    assert capsys.readouterr().err.count("[1/1]") == 2
