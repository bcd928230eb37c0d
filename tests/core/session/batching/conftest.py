"""A session on a small BERT, and what single requests give there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import isorun
import small_bert


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[isorun.Session]:
    folder = tmp_path_factory.mktemp("batching")
    model = small_bert.write(folder / "model.onnx")
    with isorun.Session(model, "ort-cpu", threads=1, cache_dir=folder / "cache") as opened:
        yield opened
