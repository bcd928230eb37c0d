import os
import subprocess
import sys
from pathlib import Path

import pytest

from isorun.cli import main
from isorun.plugin import registry
from matrix_runs import Isorun

FAKES = Path(__file__).parent / "fakes"


@pytest.fixture
def environment(cache_dir: Path) -> dict[str, str]:
    """The environment of a command: a cache of its own, and the fake backends in addition to the real ones."""
    path = os.pathsep.join(filter(None, [str(FAKES), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "ISORUN_CACHE_DIR": str(cache_dir), "COLUMNS": "80"}


@pytest.fixture
def command() -> list[str]:
    return [sys.executable, "-c", "import sys; from isorun.cli import main; sys.exit(main())", "matrix"]


@pytest.fixture
def isorun(
    command: list[str],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Isorun:
    """Run ``isorun matrix`` with arguments: in a process of its own if it runs cells, else in this one.

    ``refused`` says that it will run none.
    """

    def run(*arguments: object, refused: bool = False) -> subprocess.CompletedProcess[str]:
        words = [*map(str, arguments)]
        if words[0] in ("run", "ab", "bisect") and not refused:
            done = subprocess.run(
                [*command, *words], env=environment, capture_output=True, text=True, timeout=900, check=False
            )
        else:
            capsys.readouterr()
            with monkeypatch.context() as patch:
                patch.setenv("COLUMNS", environment["COLUMNS"])
                if refused:
                    patch.syspath_prepend(FAKES)
                    registry.refresh()
                code = main(["matrix", *words])
            if refused:
                registry.refresh()
            done = subprocess.CompletedProcess(words, code, *capsys.readouterr())
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


TINY = """
<ir_version: 10, opset_import: ["" : 17]>
tiny (int64[batch, sequence] input_ids, int64[batch, sequence] attention_mask)
    => (float[batch, sequence, 4] last_hidden_state, float[batch, 4] pooled)
<float[50, 4] table = {%s}, int64[1] last = {2}, int64[1] middle = {1}, float[1] one = {1}>
{
    last_hidden_state = Gather (table, input_ids)
    mask = Cast <to = 1> (attention_mask)
    column = Unsqueeze (mask, last)
    kept = Mul (last_hidden_state, column)
    sum = ReduceSum <keepdims = 0> (kept, middle)
    count = ReduceSum <keepdims = 0> (column, middle)
    divisor = Max (count, one)
    pooled = Div (sum, divisor)
}
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A model of one embedding: hidden states and their mean over real tokens."""
    import numpy as np
    import onnx
    import onnx.parser

    table = np.random.default_rng(0).standard_normal(200).round(4)
    path = tmp_path / "tiny.onnx"
    onnx.save(onnx.parser.parse_model(TINY % ", ".join(map(str, table))), path)
    return path
