"""Some of a graph's outputs."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import exports
from isorun.errors import InvalidFeeds
from isorun.graph.transforms import select_outputs
from rewrites import PLAIN


def test_those_that_are_wanted_are_kept_in_their_order() -> None:
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


def test_what_others_alone_need_is_dropped() -> None:
    model = exports.model(PLAIN)
    before = len(list(model.graph))
    select_outputs.keep(model, ["last_hidden_state"])
    assert len(list(model.graph)) < before
    assert not any("pooler" in name for name in model.graph.initializers)
    ir.serde.serialize_model(model)


def test_an_output_that_there_is_not() -> None:
    with pytest.raises(InvalidFeeds, match=r"no output 'pooled_output'; did you mean 'pooler_output'\?"):
        select_outputs.keep(exports.model(PLAIN), ["pooled_output"])
