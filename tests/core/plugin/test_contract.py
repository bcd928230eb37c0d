"""Versions of the plugin contract: plugins of the previous one still work, others are refused with the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import isorun
import tiny
from bindings import bound
from isorun.errors import BackendUnavailable
from isorun.plugin import CONTRACT, SUPPORTED, listing, registry
from isorun_conformance import fakes

ROOT = Path(__file__).parents[3]
FROZEN = Path(__file__).parents[2] / "fixtures" / "contract_1"
PREVIOUS = {"template-1": "template_1:Template", "hooks-1": "hooks_1:Hooks"}
OTHERS = {
    "future": "class Mine(fakes.Right):\n    contract = 99",
    "past": "class Mine(fakes.Right):\n    contract = 0",
    "odd": "class Mine(fakes.Right):\n    contract = '2'",
    "new-name": "from isorun.plugin import Teleport",
    "new-field": "from isorun.plugin import Capabilities\nCapabilities(dialects=('onnx',), teleports=True)",
}


@pytest.fixture(scope="module", autouse=True)
def plugins() -> Iterator[None]:
    names = PREVIOUS | {name: f"{name.replace('-', '_')}:Mine" for name in OTHERS}
    with fakes.installed(names) as folder:
        for path in FROZEN.glob("*.py"):
            (folder / path.name).write_text(path.read_text())
        for name, source in OTHERS.items():
            (folder / f"{name.replace('-', '_')}.py").write_text(f"from isorun_conformance import fakes\n{source}\n")
        yield


@pytest.mark.parametrize("name", PREVIOUS)
def test_plugin_of_the_previous_contract_works(bert, name):
    assert registry.get(name).contract == SUPPORTED[0] == CONTRACT - 1
    assert [each.status for each in listing.describe(name)] == ["available"]
    with isorun.Session(bert, "reference") as reference:
        expected = reference.run(None, tiny.feeds())
    with isorun.Session(bert, name) as session:
        for output, other in zip(session.run(None, tiny.feeds()), expected, strict=True):
            np.testing.assert_allclose(output, other, atol=1e-5)
        binding = bound(session, tiny.feeds(), "last_hidden_state")
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], expected[0], atol=1e-5)
        assert session.device_times(tiny.feeds(), 1) is None
        assert session.provenance.operators["numpy"]


@pytest.mark.parametrize(
    ("name", "reason", "remedy"),
    [
        (
            "future",
            "isorun-fakes 0 implements version 99 of the plugin contract, and isorun .* supports 1 and 2",
            "isorun",
        ),
        ("past", "isorun-fakes 0 implements version 0 of the plugin contract", "isorun-fakes"),
        ("odd", "`contract` that must be an integer, got '2'", "isorun-fakes"),
        ("new-name", "isorun-fakes 0 was not written for isorun .*Teleport", "isorun isorun-fakes"),
        ("new-field", "isorun-fakes 0 was not written for isorun .*teleports", "isorun isorun-fakes"),
    ],
)
def test_plugin_of_another_contract_is_refused(name, reason, remedy):
    with pytest.raises(BackendUnavailable) as caught:
        registry.get(name)
    assert re.search(reason, caught.value.reason)
    assert caught.value.remedy.endswith(f"pip install --upgrade {remedy}")


@pytest.mark.parametrize("path", sorted(ROOT.glob("plugins/*/isorun_*/**/*.py")), ids=lambda path: path.parent.name)
def test_plugins_of_this_repository_import_the_public_module_only(path):
    """import-linter checks the same for the backends."""
    imported = re.findall(r"^\s*(?:from|import) (isorun[\w.]*)", path.read_text(), re.MULTILINE)
    own = path.relative_to(ROOT / "plugins").parts[1]
    assert {name for name in imported if name.partition(".")[0] != own} <= {"isorun.plugin", "isorun.plugin.fused"}
