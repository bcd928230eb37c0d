from dataclasses import replace

from isorun.parity import DEFAULT_TOLERANCES
from isorun.plugin import registry
from isorun.types import Capabilities
from isorun_matrix.execution.plan import key, plan
from isorun_matrix.spec.spec import Spec


def spec(**changes: object) -> Spec:
    defaults = {
        "models": {"a": {"preset": "bert-3l"}, "b": {"preset": "bert-6l", "seed": 4, "shapes": ["1x8"]}},
        "backends": ["ort-cpu", {"name": "openvino", "label": "ov", "precisions": ["fp32", "bf16"], "threads": 2}],
        "shapes": ["1x8", "4x16"],
    }
    return Spec.model_validate({**defaults, **changes})


def test_every_model_runs_on_every_backend_precision_and_shape() -> None:
    planned = plan(spec(control=False), 7)
    assert [model.id for model in planned.models] == ["a", "b"]
    assert [workload.id for workload in planned.workloads] == ["a/1x8", "a/4x16", "b/1x8"]
    assert [planned_cell.id for planned_cell in planned.cells] == [
        f"{workload}/{label}"
        for workload in ("a/1x8", "a/4x16", "b/1x8")
        for label in ("ort-cpu/fp32", "ov/fp32", "ov/bf16")
    ]
    cell = planned.cells[-1]
    assert (cell.backend, cell.label, cell.threads, cell.workload) == ("openvino", "ov", 2, "b/1x8")
    assert (cell.seconds, cell.repetitions, planned.workloads[0].seed) == (1, None, 7)
    assert planned.models[1].seed == 4


def test_a_backend_in_an_environment_is_a_cell_of_its_own() -> None:
    isolated = {"name": "ort-cpu", "environment": "light"}
    backends = ["ort-cpu", isolated, {"name": "elsewhere", "environment": "light"}]
    planned = plan(spec(backends=backends), 0, {"light": {"elsewhere": Capabilities(dialects=("odd",))}})
    cells = [(cell.label, cell.backend, cell.environment) for cell in planned.cells[:3]]
    assert cells == [
        ("ort-cpu", "ort-cpu", None),
        ("ort-cpu@light", "ort-cpu", "light"),
        ("elsewhere@light", "elsewhere", "light"),
    ]
    assert planned.models[0].dialects[-1] == ("odd",)
    assert len(planned.models[0].dialects) == 3


def test_limits_are_those_that_the_backend_declares() -> None:
    rough = Capabilities(dialects=("onnx",), tolerances={"fp32": "bf16"})
    isolated = {"name": "rough", "environment": "light"}
    tolerances = {"fp32": {"rms": 0.01}}
    planned = plan(spec(backends=["ort-cpu", isolated], tolerances=tolerances), 0, {"light": {"rough": rough}})
    limits = {cell.label: (cell.tolerance.max_rel, cell.tolerance.rms) for cell in planned.cells}
    fp32, bf16 = DEFAULT_TOLERANCES["fp32"], DEFAULT_TOLERANCES["bf16"]
    assert limits == {"ort-cpu": (fp32.max_rel, 0.01), "rough@light": (bf16.max_rel, 0.01)} | {
        label: (fp32.max_rel, 0.01) for label in limits if "control" in label
    }


def test_a_control_is_the_first_available_cell_again() -> None:
    first = {"name": "ort-cuda", "precisions": ["fp16"]} if not cuda() else "reference"
    cells = plan(spec(backends=[first, "ort-cpu", "openvino"], shapes=["1x8"]), 0).cells
    (control,) = (cell for cell in cells if cell.control and cell.model == "a")
    assert control.id == f"a/1x8/{'reference' if cuda() else 'ort-cpu'}~control/fp32"
    assert not any(cell.control for cell in plan(spec(backends=["ort-cpu"]), 0).cells)


def cuda() -> bool:
    return registry.availability(registry.get("ort-cuda")).ok


def test_include_exclude_and_shapes_of_a_backend_select_cells() -> None:
    chosen = spec(
        control=False,
        include=[{"model": "a"}, {"shape": "1x*"}],
        exclude=[{"backend": "openvino", "precision": "bf16"}],
        backends=[
            "ort-cpu",
            {"name": "openvino", "precisions": ["fp32", "bf16"]},
            {"name": "reference", "shapes": ["4x16"]},
        ],
    )
    assert [cell.id for cell in plan(chosen, 0).cells] == [
        *("a/1x8/ort-cpu/fp32", "a/1x8/openvino/fp32"),
        *("a/4x16/ort-cpu/fp32", "a/4x16/openvino/fp32", "a/4x16/reference/fp32"),
        *("b/1x8/ort-cpu/fp32", "b/1x8/openvino/fp32"),
    ]


def test_lists_are_one_cell_for_each_item() -> None:
    many = spec(
        control=False,
        models={"a": {"preset": "bert-3l"}},
        shapes=[{"batch": [1, 2], "sequence": [8, 16]}],
        threads=[1, 2],
        precisions=["fp32", "bf16"],
        backends=[{"name": "openvino", "label": "ov", "options": [{"x": 1}, {"x": [2]}]}],
    )
    cells = plan(many, 0).cells
    assert [cell.id for cell in cells[:8]] == [
        f"a/1x8/ov.t{threads}.{options}/{precision}"
        for threads in (1, 2)
        for options in ("x-1", "2")
        for precision in ("fp32", "bf16")
    ]
    assert list(dict.fromkeys(cell.shape for cell in cells)) == ["1x8", "1x16", "2x8", "2x16"]
    assert (cells[-1].threads, cells[-1].options) == (2, {"x": [2]})


def test_a_batch_of_one_has_no_fully_masked_row() -> None:
    planned = plan(spec(masks=["right", "masked-row"]), 0)
    assert [workload.masks for workload in planned.workloads[:2]] == [["right"], ["right", "masked-row"]]


def test_unused_texts_are_left_out() -> None:
    model = {"checkpoint": "c", "texts": [str(n) for n in range(100)]}
    planned = plan(spec(models={"m": model}, feeds=3), 0)
    assert [len(workload.texts or ()) for workload in planned.workloads] == [3, 12]


def test_a_key_depends_on_what_decides_the_result() -> None:
    cell = plan(spec(), 0).cells[0]
    known = key(cell, fingerprint="f")
    assert key(cell, fingerprint="f") == known
    assert key(replace(cell, time_limit=1), fingerprint="f") == known
    assert key(cell, fingerprint="g") != known
    assert key(replace(cell, threads=1), fingerprint="f") != known
    assert key(replace(cell, options={"x": 1}), fingerprint="f") != known
    assert key(replace(cell, environment="e"), fingerprint="f") != known
    assert key(replace(cell, tolerance=replace(cell.tolerance, rms=0.5)), fingerprint="f") != known
