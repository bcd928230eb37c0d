"""The pages in docs/ and the README: their links, commands and paths exist. test_page_blocks.py runs their code."""

import re
import shlex
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from isorun.cli import app as cli
from isorun.cli import plugin
from isorun_deepsparse.command import app as prune_app
from isorun_matrix.measurement import machine

ROOT = Path(__file__).parent.parent
PROSE = [
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "plugins").glob("**/README.md")),
]


def test_plugin_page_shows_the_template(tmp_path: Path) -> None:
    plugin.write("my-engine", tmp_path / "made")
    written = [path.read_text(encoding="utf-8") for path in (tmp_path / "made").rglob("*.*") if path.is_file()]
    page = "".join(
        (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("writing-a-backend.md", "conformance.md")
    )
    blocks: list[str] = re.findall(r"^```(?:python|toml)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    others = ("onnx_backend", 'kind = "not_implemented"')
    shown = [block for block in blocks if not any(text in block for text in others)]
    assert len(shown) == len(blocks) - len(others) == 4
    for block in shown:
        assert any(block in text for text in written), block


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_a_target(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}, which does not exist"
        assert not anchor or anchor in anchors(path), f"{page.name} links to {target}#{anchor}, which does not exist"


def anchors(page: Path) -> list[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


@cache
def commands() -> dict[str, Any]:
    """Every command with options, by what a user types, such as `isorun env create`."""
    commands_by_name: dict[str, Any] = {}

    def walk(name: str, command: Any) -> None:
        loaded = command.make_context(name, [], resilient_parsing=True).command
        inner = getattr(loaded, "commands", None)
        if inner is None:
            commands_by_name[name] = loaded
        for subcommand in inner or ():
            walk(f"{name} {subcommand}", inner[subcommand])

    walk("isorun", cli.command())
    walk("isorun prune", typer.main.get_command(prune_app))  # of a plugin, which need not be installed
    return commands_by_name


def shown(page: str) -> list[str]:
    """Every `isorun ...` on a page: in fenced and indented blocks, and within a line."""
    blocks = re.findall(r"^```(?:console|sh)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    blocks += re.findall(r"^    (.*)$", page, re.MULTILINE)
    typed = re.findall(r"(?:^|&& )(?:\S*/)?(isorun \S.*)$", "\n".join(blocks).replace("\\\n", " "), re.MULTILINE)
    return [*typed, *re.findall(r"`(isorun [^`]*)`", page)]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_on_a_page_exist(page: Path) -> None:
    known = commands()
    for line in shown(page.read_text(encoding="utf-8")):
        typed = shlex.split(line, comments=True)
        name = next((command for command in known if typed[: command.count(" ") + 1] == command.split()), None)
        if name is None:  # any command, or a group of commands
            assert typed[1] in ("COMMAND", "--help", "--version", "--debug", *(key.split()[1] for key in known)), line
            continue
        options = {spelt for option in known[name].params for spelt in option.opts} | {"--help"}
        assert {word for word in typed if word.startswith("-")} <= options, line


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_on_a_page_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:core|backends|conformance|matrix|plugins|benchmarks|docs|tests/\w+)/[\w./-]*)`",
        page.read_text(encoding="utf-8"),
    )
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing


def test_matrix_page_lists_the_collected_environment() -> None:
    page = (ROOT / "docs" / "matrix-results.md").read_text(encoding="utf-8")
    shown = page[page.index('"environment": {"cpu"') : page.index(' "cells": [')]
    collected = asdict(machine.collect([], {}))
    assert [key for key in (*collected, *collected["cpu"]) if f'"{key}"' not in shown] == []


def test_navigation_of_the_site_has_every_page() -> None:
    _, _, nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    navigation = re.findall(r"([\w./-]+\.md)$", nav, re.MULTILINE)
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    pages = [
        page for page in pages if not page.startswith("results/2")
    ]  # one for each run; results/README.md lists them
    assert sorted([*pages, "index.md", "project/CHANGELOG.md"]) == sorted(navigation)
