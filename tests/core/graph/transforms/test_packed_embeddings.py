"""What lies between embeddings and the first attention of a graph whose padding is removed."""

import numpy as np
import onnx_ir as ir
import pytest

import exports
from isorun.graph.transforms import padding_removal
from rewrites import number


@pytest.mark.parametrize("mixes", [False, True])
def test_what_mixes_tokens_behind_what_combines_them_with_their_row(mixes: bool) -> None:
    """As in ESM, where masked tokens become 0; here with a sum over tokens behind that."""
    model = exports.fused("esm-dynamo18-eager")
    assert padding_removal.examine(model).refusal == ""
    embedding = next(node for node in model.graph if node.op_type == "Embedding")
    ids = next(value for value in model.graph.inputs if value.name == "input_ids")
    known = [
        number(model, name, value, kind)
        for name, value, kind in (
            ("masked", 50, np.int64),
            ("last", [-1], np.int64),
            ("nothing", 0.0, np.float32),
            ("along", 1, np.int64),
        )
    ]
    equal = ir.node("Equal", [ids, known[0]])
    column = ir.node("Unsqueeze", [equal.outputs[0], known[1]])
    chosen = ir.node("Where", [column.outputs[0], known[2], embedding.outputs[0]])
    summed = ir.node("CumSum", [chosen.outputs[0], known[3]])
    last = summed if mixes else chosen
    ir.convenience.replace_all_uses_with(embedding.outputs[0], last.outputs[0])
    chosen.replace_input_with(2, embedding.outputs[0])
    model.graph.insert_after(embedding, [equal, column, chosen, *([summed] if mixes else [])])
    assert ("CumSum" in padding_removal.examine(model).refusal) == mixes
