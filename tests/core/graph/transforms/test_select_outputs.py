"""Some of a graph's outputs."""

import onnx_ir as ir
import pytest

import exports
from isorun.errors import InvalidFeeds
from isorun.graph.transforms import select_outputs
from rewrites import PLAIN


def test_keeps_requested_outputs_in_order() -> None:
    fed = exports.given(PLAIN)
    hidden, pooled = exports.answers(PLAIN)
    for names, expected in (
        (["pooler_output", "last_hidden_state"], [pooled, hidden]),
        (["last_hidden_state"], [hidden]),
    ):
        model = exports.model(PLAIN)
        select_outputs.keep(model, names)
        assert [value.name for value in model.graph.outputs] == names
        assert [value.name for value in model.graph.inputs] == list(fed)
        assert exports.difference(expected, exports.run(model, fed)) == 0


def test_removes_nodes_of_other_outputs() -> None:
    model = exports.model(PLAIN)
    before = len(list(model.graph))
    select_outputs.keep(model, ["last_hidden_state"])
    assert len(list(model.graph)) < before
    assert not any("pooler" in name for name in model.graph.initializers)
    ir.serde.serialize_model(model)


def test_rejects_an_unknown_output() -> None:
    with pytest.raises(InvalidFeeds, match=r"no output 'pooled_output'; did you mean 'pooler_output'\?"):
        select_outputs.keep(exports.model(PLAIN), ["pooled_output"])
