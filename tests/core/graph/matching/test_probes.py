"""The batches on which a part of a graph is tried, in the sizes that its inputs take."""

import numpy as np
import onnx_ir as ir
import pytest

from isorun.graph.matching.probes import MASK_KINDS, Probes

Size = int | str


def graph(*shapes: tuple[Size, Size]) -> ir.Graph:
    """Inputs of these shapes; the output is twice the first."""
    kind = ir.TensorType(ir.DataType.INT64)
    inputs = [ir.Value(name=f"x{index}", type=kind, shape=ir.Shape(shape)) for index, shape in enumerate(shapes)]
    node = ir.node("Add", [inputs[0], inputs[0]])
    return ir.Graph(inputs, node.outputs, nodes=[node], opset_imports={"": 17}, name="g")


@pytest.mark.parametrize(
    ("shapes", "rows", "lengths", "fixed"),
    [
        ([("batch", "sequence")], MASK_KINDS, (5, 8), False),
        ([("batch", 7)], MASK_KINDS, (7,), True),
        ([(3, "sequence"), (3, "sequence")], 9, (5, 8), False),
        ([(1, 7)], MASK_KINDS, (7,), True),
        ([(8, 7)], 8, (7,), True),
        ([(2, 7), (3, 7)], MASK_KINDS, (7,), True),  # which of the two counts cannot be told
        ([(0, 6)], MASK_KINDS, (6,), True),  # nothing can be tried on no rows
        ([(9, 0)], 9, (5, 8), False),
    ],
)
def test_probes_use_fixed_sizes(
    shapes: list[tuple[Size, Size]], rows: int, lengths: tuple[int, ...], fixed: bool
) -> None:
    probes = Probes(graph(*shapes))
    assert (probes.rows, probes.lengths, probes.fixed) == (rows, lengths, fixed)


def test_probes_of_images_have_the_length_that_most_dense_layers_read() -> None:
    """A pooling head reads one vector of each image."""
    kind = ir.TensorType(ir.DataType.FLOAT)
    weight = ir.Value(name="weight", const_value=ir.tensor(np.ones((4, 4), np.float32)), type=kind)
    weight.shape = ir.Shape([4, 4])
    images = ir.Value(name="images", type=kind, shape=ir.Shape(["batch", 3, 8, 8]))
    layers = []
    for length in (1, 16, 16):
        hidden = ir.node("Identity", [images])
        hidden.outputs[0].type, hidden.outputs[0].shape = kind, ir.Shape(["batch", length, 4])
        layers += [hidden, ir.node("MatMul", [hidden.outputs[0], weight])]
    outputs = [node.outputs[0] for node in layers[1::2]]
    encoder = ir.Graph([images], outputs, nodes=layers, initializers=[weight], opset_imports={"": 17}, name="g")
    probes = Probes(encoder)
    assert (probes.lengths, probes.fixed) == ((16,), True)


def test_probes_contain_every_kind_of_mask() -> None:
    masks = Probes(graph((3, 8))).masks(8)
    assert masks.shape == (9, 8)
    assert len(np.unique(masks, axis=0)) == MASK_KINDS
    assert (masks[8] == masks[0]).all()


@pytest.mark.parametrize("batch", ["batch", 1, 2, 5])
def test_evaluates_rows_in_batches_of_fixed_size(batch: Size) -> None:
    doubled = graph((batch, 7))
    probes = Probes(doubled)
    rows = np.arange(probes.rows * 7).reshape(probes.rows, 7)
    assert (probes.evaluator({doubled.inputs[0]: rows})(doubled.outputs[0]) == 2 * rows).all()
