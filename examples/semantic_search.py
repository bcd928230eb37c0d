"""Search the text files of a folder by meaning: python semantic_search.py FOLDER "a question" """

from __future__ import annotations

import sys
from pathlib import Path

import isorun


def paragraphs(folder: Path) -> list[tuple[str, str]]:
    """The paragraphs of Markdown and text files, each with its file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in (".md", ".txt"))
    return [
        (path.name, " ".join(text.split()))
        for path in files
        for text in path.read_text(encoding="utf-8", errors="replace").split("\n\n")
        if text.strip()
    ]


def main(folder: str, question: str, count: int = 3) -> None:
    texts = paragraphs(Path(folder))
    with isorun.Embedder("all-MiniLM-L6-v2") as embedder:
        vectors = embedder.embed([text for _, text in texts])
        scores = vectors @ embedder.embed([question])[0]  # the vectors have length 1
    for index in scores.argsort()[::-1][:count]:
        name, text = texts[index]
        print(f"{scores[index]:.2f}  {name}: {text[:100]}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:3])
