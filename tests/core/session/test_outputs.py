"""Sessions for some of a model's outputs."""

import numpy as np
import pytest

import isorun
import numpy_bert
import tiny
from isorun.errors import InvalidArgument, InvalidFeeds, InvalidType
from onnx_text import graph

LAYERS = tiny.CONFIG["num_hidden_layers"]
NARROW = {"SelfAttention": LAYERS - 1, "SingleQueryAttention": 1}


def attentions(session):
    return {kind: count for kind, count in session.provenance.fused.items() if kind.endswith("Attention")}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("padding", ["keep", "remove"])
def test_the_pooler_alone_has_a_last_layer_of_one_position(bert, any_backend, padding):
    with isorun.Session(bert, any_backend, padding=padding, outputs=["pooler_output"]) as session:
        assert [spec.name for spec in session.get_outputs()] == ["pooler_output"]
        assert session.provenance.details["graph"]["outputs"] == ["pooler_output"]
        assert {kind: count for kind, count in attentions(session).items() if count} == {
            kind: count for kind, count in NARROW.items() if count
        }
        for kind in tiny.MASKS:
            feeds = tiny.feeds(3, 9, kind=kind)
            expected = numpy_bert.run(tiny.CONFIG, tiny.weights(), feeds)["pooler_output"]
            (pooled,) = session.run(None, feeds)
            np.testing.assert_allclose(pooled, expected, rtol=0, atol=2e-5, err_msg=kind)
        with pytest.raises(InvalidFeeds, match="no output 'last_hidden_state'"):
            session.run(["last_hidden_state"], feeds)


def test_an_output_that_is_requested_twice(bert, any_backend):
    feeds = tiny.feeds(2, 8)
    feeds["attention_mask"][:, -1] = 0  # too little padding to remove
    with isorun.Session(bert, any_backend) as session:
        first, second = session.run(["last_hidden_state"] * 2, feeds)
    np.testing.assert_array_equal(first, second)
    assert not first[:, -1].any()


def test_outputs_in_the_order_given(bert):
    names = ["pooler_output", "last_hidden_state"]
    feeds = tiny.feeds()
    with isorun.Session(bert, "ort-cpu") as session:
        expected = session.run(names, feeds)
    with isorun.Session(bert, "ort-cpu", outputs=names) as session:
        assert [spec.name for spec in session.get_outputs()] == names
        assert attentions(session) == {"SelfAttention": LAYERS}
        for wanted, output in zip(expected, session.run(None, feeds), strict=True):
            np.testing.assert_array_equal(wanted, output)


def test_selects_outputs_of_other_models(any_backend):
    model = graph("agraph (float[n] x) => (float[n] y, float[n] z) { y = Neg(x) z = Abs(x) }")
    x = np.array([-1.5, 2.0], np.float32)
    with isorun.Session(model, any_backend, outputs=["z"]) as session:
        assert [spec.name for spec in session.get_outputs()] == ["z"]
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], [1.5, 2.0])
    with isorun.Session(model, any_backend) as session:  # the same file, whole
        assert len(session.run(None, {"x": x})) == 2


@pytest.mark.parametrize(
    ("outputs", "error"),
    [
        (["pooled_output"], InvalidFeeds),
        ([], InvalidArgument),
        (["pooler_output", "pooler_output"], InvalidArgument),
        ("pooler_output", InvalidType),
        ([0], InvalidType),
    ],
)
def test_rejects_invalid_outputs(bert, outputs, error):
    with pytest.raises(error):
        isorun.Session(bert, outputs=outputs)


def test_int8_of_one_position_is_near_fp32(bert):
    feeds = [tiny.feeds(8, 40, seed=seed, kind="right") for seed in range(2)]
    with isorun.Session(bert, "ort-cpu", outputs=["pooler_output"]) as session:
        expected = session.run(None, feeds[0])[0]
    for padding in ("keep", "remove"):
        with isorun.Session(
            bert, "ort-cpu", precision="int8", calibration=feeds, padding=padding, outputs=["pooler_output"]
        ) as session:
            output = session.run(None, feeds[0])[0]
            assert session.provenance.precision == "fp32+int8"  # the pooler is as it was
        cosines = (output * expected).sum(1) / np.linalg.norm(output, axis=1) / np.linalg.norm(expected, axis=1)
        assert cosines.min() > 0.97
        assert cosines.min() < 1 - 1e-7, "it is not fp32"
