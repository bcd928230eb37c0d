"""Hooks of MkDocs: the README is the first page, and what pages link to outside docs/ becomes a page of the site.

On a repository's host, links such as ``../plugins/isorun-tract`` show a file or a folder. The site has neither, so each
such target is written to ``project/``: Markdown as it is, other files as code, a folder as its README or its files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README and all that is linked, directly or from a page that this adds."""
    pending = [ROOT / "README.md", ROOT / "CHANGELOG.md"]
    pending += [path for page in files.documentation_pages() for path in _targets(ROOT / "docs" / page.src_uri)]
    while pending:
        path = pending.pop()
        place = str(_place(path))
        if path.is_relative_to(ROOT / "docs") or place in files.src_uris:
            continue
        files.append(File.generated(config, place, content=_rewritten(_text(path), _readme(path))))
        pending += _targets(_readme(path))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links that leave docs/ to the pages above."""
    if page.file.generated_by:
        return markdown
    return _rewritten(markdown, ROOT / "docs" / page.file.src_uri)


def _readme(path: Path) -> Path:
    return path / "README.md" if (path / "README.md").is_file() else path


def _place(path: Path) -> PurePosixPath:
    """Where a file or folder of the repository is on the site."""
    path = _readme(path)
    if path == ROOT / "README.md":
        return PurePosixPath("index.md")
    if path.is_relative_to(ROOT / "docs"):
        return PurePosixPath(path.relative_to(ROOT / "docs").as_posix())
    place = f"project/{path.relative_to(ROOT).as_posix()}"
    return PurePosixPath(place if place.endswith(".md") else f"{place}.md")


def _text(path: Path) -> str:
    """The page of a file or folder."""
    path = _readme(path)
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    paths = sorted(child for child in path.iterdir() if child.is_file()) if path.is_dir() else [path]
    codes = [
        f"## `{code.name}`\n\n~~~~~~ {code.suffix[1:]}\n{code.read_text(encoding='utf-8')}\n~~~~~~\n" for code in paths
    ]
    return "\n".join([f"# `{path.relative_to(ROOT).as_posix()}`\n", *codes])


def _targets(page: Path) -> list[Path]:
    """The existing files and folders that a page links to."""
    if page.suffix != ".md" or not page.is_file():
        return []
    paths = [Path(os.path.normpath(page.parent / target)) for target in _LINK.findall(page.read_text(encoding="utf-8"))]
    return [path for path in paths if path.exists()]


def _rewritten(markdown: str, page: Path) -> str:
    """The text of a page of the repository, with links as they are on the site."""
    folder = _place(page).parent

    def link(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(page.parent / match[1]))
        return os.path.relpath(_place(path), folder) if path.exists() else match[1]

    return _LINK.sub(link, markdown) if page.suffix == ".md" else markdown
