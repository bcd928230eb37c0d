"""The versions of stages in cache keys: raised whenever a stage's output changes."""

import pytest

import golden
from isorun.system.cache import stages


@pytest.mark.parametrize("stage", stages.VERSIONS)
def test_the_version_is_raised_when_the_output_changes(stage: str) -> None:
    why = golden.complaint(stage, golden.record().get(stage, {}), dict(golden.MAKERS[stage]()))
    assert not why, why


def test_a_forgotten_version_is_reported() -> None:
    recorded = {"version": stages.VERSIONS["lowering"], "digests": {"bert": "a"}}
    why = golden.complaint("lowering", recorded, {"bert": "b"})
    assert "Raise VERSIONS['lowering']" in why
    assert golden.complaint("lowering", recorded, {"bert": "a"}) == ""
    assert "Record" in golden.complaint("lowering", recorded, {"bert": "a", "new": "c"})


def test_a_key_is_outdated_once_a_version_of_its_stages_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [stages.versioned("bert-3l-0", "presets", "builders"), stages.versioned("0f", "lowering")]
    assert not any(map(stages.is_outdated, [*keys, "no-stage3"]))
    monkeypatch.setitem(stages.VERSIONS, "builders", stages.VERSIONS["builders"] + 1)
    assert [stages.is_outdated(key) for key in keys] == [True, False]
    assert stages.versioned("bert-3l-0", "presets", "builders") != keys[0]
