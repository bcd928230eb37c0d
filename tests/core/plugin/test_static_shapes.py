"""What plugins may declare of static shapes."""

import json

import pytest

import static_engine
from isorun.plugin import Capabilities, StaticShapes, registry
from isorun.plugin.description import Description
from isorun.plugin.validation import problems

INVALID = {
    "no batches": (StaticShapes(batches=()), "static_shapes.batches` must be a tuple of at least one integer above 0"),
    "a list": (StaticShapes(lengths=[8]), "static_shapes.lengths` must be a tuple"),
    "zero": (StaticShapes(lengths=(0, 8)), "static_shapes.lengths` must be a tuple"),
    "order": (StaticShapes(batches=(4, 1)), "static_shapes.batches` must be in ascending order"),
    "limit": (StaticShapes(max_batch=16), "static_shapes.max_batch` must be at least 32, as in batches, got 16"),
    "memory": (StaticShapes(memory=1.5), "static_shapes.memory` must be an integer above 0, or None, got 1.5"),
    "executables": (StaticShapes(executables=0), "static_shapes.executables` must be an integer above 0, got 0"),
    "a mapping": ({"batches": (1,)}, "static_shapes` must be an isorun.plugin.StaticShapes"),
}


@pytest.mark.parametrize("case", INVALID)
def test_rejects_invalid_static_shapes(case):
    static, message = INVALID[case]
    mistakes = list(problems(Capabilities(("static",), static_shapes=static)))
    assert len(mistakes) == 1
    assert message in mistakes[0]


def test_static_shapes_exclude_device_arrays():
    (problem,) = problems(Capabilities(("static",), static_shapes=StaticShapes(), device_arrays=True))
    assert "device_arrays" in problem


def test_static_shapes_imply_dynamic_shapes_without_data_dependent_ones():
    capabilities = Capabilities(("static",), static_shapes=StaticShapes())
    assert not list(problems(capabilities))
    assert capabilities.dynamic_shapes
    assert not capabilities.data_dependent_shapes


def test_static_shapes_survive_the_way_to_another_process():
    with static_engine.registered():
        backend = registry.get("static")
        described = Description.from_dict(json.loads(json.dumps(Description.of(backend).as_dict())))
        assert described.capabilities == backend.capabilities
