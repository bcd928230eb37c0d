import pytest

from isorun.errors import SpecError
from isorun_matrix.execution import rerun
from isorun_matrix.spec.shapes import Shape


@pytest.mark.parametrize(
    ("item", "message"),
    [("bert", "must be NAME=PATH"), ("bert=", "must be NAME=PATH"), ("brt=x.onnx", "did you mean 'bert'")],
)
def test_a_wrong_replacement_of_a_model(item: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        rerun.replaced({"bert": {}}, [item])
    assert ("did you mean" in str(caught.value)) == ("did you mean" in message)


def test_what_is_invalid_is_named_by_its_keys() -> None:
    with pytest.raises(SpecError, match=r"^why:\n  batch: must be greater than or equal to 1, got 0$"):
        rerun.validated({"batch": 0}, "why", Shape)
