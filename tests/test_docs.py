"""The pages in docs/ and the README, tried as written: the Python blocks of a page run in order, in one namespace."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from isorun.cli import app as cli
from isorun.cli import plugin
from isorun_matrix.measurement import machine

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "docs" / "session.md", ROOT / "README.md"]
PROSE = [
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "plugins").glob("**/README.md")),
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(bert, tmp_path / "bert.onnx")
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(page.read_text())
    assert blocks, f"{page.name} has no Python block"
    namespace: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page.name}, block {number + 1}", "exec"), namespace)


def test_a_plugin_is_shown_as_the_command_writes_it(tmp_path: Path) -> None:
    plugin.write("my-engine", tmp_path / "made")
    written = [path.read_text() for path in (tmp_path / "made").rglob("*.*") if path.is_file()]
    page = (ROOT / "docs" / "writing-a-backend.md").read_text()
    blocks: list[str] = re.findall(r"^```(?:python|toml)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    shown = [block for block in blocks if "onnx_backend" not in block]
    assert len(shown) == len(blocks) - 1 == 4
    for block in shown:
        assert any(block in text for text in written), block


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(path), f"{page.name} links to {target}#{anchor}, which is not there"


def anchors(page: Path) -> list[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def commands() -> dict[str, Any]:
    """Every command that has options of its own, by what is typed: `isorun env create`."""
    found: dict[str, Any] = {}

    def walk(name: str, command: Any) -> None:
        loaded = command.make_context(name, [], resilient_parsing=True).command
        inner = getattr(loaded, "commands", None)
        if inner is None:
            found[name] = loaded
        for each in inner or ():
            walk(f"{name} {each}", inner[each])

    walk("isorun", cli.command())
    return found


def option_rows() -> list[str]:
    """The table of options in docs/cli.md, as ``--help`` has it."""
    rows = []
    for name, command in commands().items():
        for option in command.params:
            if option.param_type_name != "option" or "--help" in option.opts:
                continue
            metavar = "" if option.is_flag else f" {option.metavar or option.name.upper()}".replace("|", "\\|")
            default = "" if option.is_flag or option.multiple or option.default is None else option.default
            ending = " Required." if option.required else f" Default: {default}." if default != "" else ""
            spelt = ", ".join(f"`{each}`" for each in option.opts[:-1])
            spelt += f"{', ' if spelt else ''}`{option.opts[-1]}{metavar}`"
            rows.append(f"| `{name}` | {spelt} | {option.help}{ending} |")
    return rows


def test_every_command_and_option_is_in_the_page_on_them() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    head, _, options = page.partition("\n## Every option\n")
    assert re.findall(r"^\| `isorun .*$", options, re.MULTILINE) == option_rows()
    missing = [name for name in commands() if f"| `{name}" not in head]
    assert not missing, "not in the table of commands"


def shown(page: str) -> list[str]:
    """What a page shows of `isorun ...`: in blocks that are fenced or indented, and in the middle of a line."""
    blocks = re.findall(r"^```(?:console|sh)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    blocks += re.findall(r"^    (.*)$", page, re.MULTILINE)
    typed = re.findall(r"(?:^|&& )(?:\S*/)?(isorun \S.*)$", "\n".join(blocks).replace("\\\n", " "), re.MULTILINE)
    return [*typed, *re.findall(r"`(isorun [^`]*)`", page)]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_are_shown_have_the_options_that_they_show(page: Path) -> None:
    known = commands()
    for line in shown(page.read_text()):
        typed = shlex.split(line, comments=True)
        name = next((each for each in known if typed[: each.count(" ") + 1] == each.split()), None)
        if name is None:  # a command in general, or a group of them
            assert typed[1] in ("COMMAND", "--help", "--version", "--debug", *(each.split()[1] for each in known)), line
            continue
        options = {spelt for option in known[name].params for spelt in option.opts} | {"--help"}
        assert {word for word in typed if word.startswith("-")} <= options, line


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_are_there(page: Path) -> None:
    named = re.findall(r"`((?:core|backends|matrix|plugins|benchmarks|docs|tests/\w+)/[\w./-]*)`", page.read_text())
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing


def test_the_document_of_a_run_has_the_environment_that_is_collected() -> None:
    page = (ROOT / "docs" / "matrix.md").read_text()
    shown = page[page.index('"environment": {"cpu"') : page.index(' "cells": [')]
    collected = asdict(machine.collect([], {}))
    assert [key for key in (*collected, *collected["cpu"]) if f'"{key}"' not in shown] == []
