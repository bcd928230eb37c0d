import pytest

from isorun.system.cleanup import closed_on_error


class Resource:
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_stays_open_if_nothing_is_raised() -> None:
    resource = Resource()
    with closed_on_error(resource):
        pass
    assert resource.closed == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_is_closed_by_an_error_which_is_raised_again(error: type[BaseException]) -> None:
    resource = Resource()
    with pytest.raises(error), closed_on_error(resource):
        raise error
    assert resource.closed == 1
