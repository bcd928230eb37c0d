"""Sessions on a model whose mask has another name than most, and on one without a mask."""

from pathlib import Path

import numpy as np
import pytest

import isorun
import masks
from isorun.compilation.calibration import CalibrationWarning

MASK = (np.arange(40) < np.array([[40], [7], [3]])).astype(np.int64)


@pytest.fixture(params=[masks.NAME, None], ids=str, scope="module")
def mask(request: pytest.FixtureRequest) -> str | None:
    return request.param


@pytest.fixture(scope="module")
def model(mask: str | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return masks.write(tmp_path_factory.mktemp("masks") / "model.onnx", mask, hidden_size=32, intermediate_size=48)


def test_a_session_knows_the_mask(model: Path, mask: str | None, tmp_path: Path) -> None:
    for _ in ("analysed", "found in the cache"):
        with isorun.Session(model, "ort-cpu", cache_dir=tmp_path) as session:
            info = session.model_info
        assert info.mask == mask
        assert info.token_outputs == (None if mask is None else ("last_hidden_state",))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_padding_is_removed_where_the_mask_says_so(backend: str, model: Path, mask: str | None) -> None:
    feeds = masks.feeds(MASK, mask)
    with isorun.Session(model, backend, padding="keep") as kept, isorun.Session(model, backend) as session:
        expected, got = kept.run(None, feeds), session.run(None, feeds)
        removed = session.provenance.details["padding"]["removed"]
    if mask is None:
        assert removed.startswith("never")
    else:
        assert removed == "from batches that have enough of it"
        expected[0][MASK == 0] = 0
    for output, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(output, wanted, atol=2e-5)


def test_requests_share_a_batch_and_get_what_they_get_alone(model: Path, mask: str | None) -> None:
    lengths = [3, 5, 9, 3, 5, 9, 3, 17]
    requests = [masks.feeds(np.ones((1, length), np.int64), mask, seed) for seed, length in enumerate(lengths)]
    with isorun.Session(model, "ort-cpu", padding="keep") as session:
        for feeds, got in zip(requests, session.map(requests, max_tokens=256), strict=True):
            for output, wanted in zip(got, session.run(None, feeds), strict=True):
                assert output.shape == wanted.shape
                np.testing.assert_allclose(output, wanted, atol=2e-5)


def test_precisions_are_judged_at_real_tokens(model: Path, mask: str | None, tmp_path: Path) -> None:
    with (
        pytest.warns(CalibrationWarning, match="random tokens"),
        isorun.Session(model, "ort-cpu", precision="auto", tolerance=0.5, cache_dir=tmp_path) as session,
    ):
        note = session.provenance.details["precision"]
    (int8,) = (candidate for candidate in note["candidates"] if candidate["precision"] == "int8")
    assert set(note["requests"]) == set(int8["cosines"])
    assert len(note["requests"]) == (1 if mask is None else 5)
    assert int8["reason"] == ""
