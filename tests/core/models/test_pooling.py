import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from isorun.models.pooling import cosine_matrix, mean_pool, normalized, pool
from isorun.models.sentence_settings import POOLINGS

_FLOATS = st.floats(-1e3, 1e3, width=32)


@given(st.data())
def test_mean_pool_is_the_mean_of_real_tokens(data: st.DataObject) -> None:
    batch, sequence, width = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5)))
    hidden = data.draw(arrays.arrays(np.float32, (batch, sequence, width), elements=_FLOATS))
    mask = data.draw(arrays.arrays(np.int64, (batch, sequence), elements=st.integers(0, 1)))
    pooled = mean_pool(hidden, mask)
    for row in range(batch):
        real = hidden[row][mask[row] == 1]
        expected = real.mean(axis=0, dtype=np.float64) if len(real) else np.zeros(width)
        np.testing.assert_allclose(pooled[row], expected, rtol=1e-4, atol=1e-3)


def test_mean_pool_ignores_nan_at_padding() -> None:
    hidden = np.array([[[1.0], [np.nan]], [[np.inf], [np.nan]]], np.float32)
    np.testing.assert_array_equal(mean_pool(hidden, np.array([[1, 0], [0, 0]])), [[1.0], [0.0]])


def test_poolings() -> None:
    """As sentence-transformers defines them, over positions 1 and 2 of 4."""
    hidden = np.array([[[9.0, 9.0], [2.0, -1.0], [4.0, -3.0], [np.nan, 9.0]]], np.float32)
    mask = np.array([[0, 1, 1, 0]])
    expected = {
        "mean": [3, -2],
        "cls": [2, -1],
        "max": [4, -1],
        "lasttoken": [4, -3],
        "weightedmean": [(2 * 2 + 4 * 3) / 5, (-1 * 2 - 3 * 3) / 5],
        "mean_sqrt_len_tokens": [6 / np.sqrt(2), -4 / np.sqrt(2)],
    }
    assert tuple(expected) == POOLINGS
    np.testing.assert_allclose(pool(hidden, mask, POOLINGS), [np.concatenate(list(expected.values()))], rtol=1e-6)


def test_the_last_of_no_token_is_zero() -> None:
    """As in sentence-transformers, where the tokens of a prompt may be all that there is."""
    hidden = np.array([[[9.0], [2.0]], [[3.0], [4.0]]], np.float32)
    np.testing.assert_array_equal(pool(hidden, np.array([[0, 0], [1, 0]]), ("lasttoken",)), [[0], [3]])


def test_cosine_matrix() -> None:
    matrix = cosine_matrix(np.array([[2.0, 0.0], [3.0, 3.0], [-1.0, 0.0], [0.0, 0.0]], np.float32))
    half = np.sqrt(0.5)
    np.testing.assert_allclose(matrix, [[1, half, -1, 0], [half, 1, -half, 0], [-1, -half, 1, 0], [0, 0, 0, 0]])


def test_an_application_may_have_numpy_raise_errors() -> None:
    tiny = np.array([[1.0, 1e-30]], np.float32)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(normalized(tiny), tiny)
