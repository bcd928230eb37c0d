"""The names in a text file, with how often each occurs: python names_in_texts.py FILE [MODEL]"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import isorun


def main(file: str, model: str = "dslim/bert-base-NER") -> None:
    paragraphs = [text for text in Path(file).read_text(encoding="utf-8").split("\n\n") if text.strip()]
    with isorun.TokenClassifier(model) as classifier:
        # A paragraph may be longer than the model reads: windows share 32 tokens.
        entities = classifier.classify(paragraphs, stride=32)
    names = Counter(
        (text[entity.start : entity.end], entity.label)
        for text, in_text in zip(paragraphs, entities, strict=True)
        for entity in in_text
        if entity.score > 0.5
    )
    for (name, label), count in names.most_common():
        print(f"{count:4}  {label:6}  {name}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
