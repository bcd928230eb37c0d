"""A prompt for a language model, from the best paragraphs of a folder: python reranked_rag.py FOLDER "a question"

An embedder finds candidates among all paragraphs, and a reranker, which reads question and paragraph together, orders
them. Pass the prompt to any language model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import isorun

EMBEDDER, RERANKER = "all-MiniLM-L6-v2", "cross-encoder/ms-marco-MiniLM-L6-v2"
PROMPT = "Answer from these sources only, and name them.\n\n{sources}\n\nQuestion: {question}\n"


def retrieve(texts: list[str], question: str, model: str, count: int) -> list[str]:
    """The texts whose vectors are closest to the question's."""
    with isorun.Embedder(model) as embedder:
        scores = embedder.embed(texts) @ embedder.embed([question])[0]
    return [texts[index] for index in scores.argsort()[::-1][:count]]


def main(folder: str, question: str, embedder: str = EMBEDDER, reranker: str = RERANKER) -> None:
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file() and path.suffix in (".md", ".txt"))
    texts = [
        text
        for path in files
        for text in path.read_text(encoding="utf-8", errors="replace").split("\n\n")
        if text.strip()
    ]
    candidates = retrieve(texts, question, embedder, count=25)
    with isorun.CrossEncoder(reranker) as model:
        best = model.rank(question, candidates, top_k=3)
    sources = "\n".join(f"[{number}] {' '.join(ranked.text.split())}" for number, ranked in enumerate(best, 1))
    print(PROMPT.format(sources=sources, question=question))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
