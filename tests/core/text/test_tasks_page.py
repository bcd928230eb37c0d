"""``docs/tasks.md`` as written, with tiny checkpoints in place of those of the hub."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "tasks.md"
TINY = {
    "dslim/bert-base-NER": "bert-entities",
    "distilbert-base-uncased-finetuned-sst-2-english": "bert-classes-single_label_classification",
    "deepset/roberta-base-squad2": "roberta-answers",
    "bert-base-uncased": "bert-words",
}
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_every_block_opens_one_model() -> None:
    assert len(BLOCKS) >= len(TINY)
    assert [sum(f'"{name}"' in block for name in TINY) for block in BLOCKS] == [1] * len(BLOCKS)


@pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")
def test_blocks_run_in_order(tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    for number, block in enumerate(BLOCKS):
        for name, folder in TINY.items():
            block = block.replace(f'"{name}"', repr(str(tasks / folder)))
        exec(compile(block, f"block {number + 1}", "exec"), namespace)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) >= 2 + 1 + 3  # classes, an answer, words; tiny models may see no names
    assert len(namespace["everything"][0]) > 1  # type: ignore[index]
    assert len(namespace["with_none"]) == 1  # type: ignore[arg-type]
