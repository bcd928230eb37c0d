"""Versions of the plugin contract: plugins of an unsupported one are refused with the remedy."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from isorun.errors import BackendUnavailable
from isorun.models import lowering, source
from isorun.plugin import CompileConfig, SupportsBinding, SupportsDeviceArrays, SupportsDeviceTimes, registry
from isorun.system.cache import Cache
from isorun_conformance import fakes

ROOT = Path(__file__).parents[3]
OTHERS = {
    "future": "class Mine(fakes.Right):\n    contract = 99",
    "past": "class Mine(fakes.Right):\n    contract = 0",
    "undeclared": "from isorun.plugin import Backend\nclass Mine(Backend):\n    pass",
    "odd": "class Mine(fakes.Right):\n    contract = '2'",
    "new-name": "from isorun.plugin import Teleport",
    "new-field": "from isorun.plugin import Capabilities\nCapabilities(dialects=('onnx',), teleports=True)",
}


@pytest.fixture(scope="module", autouse=True)
def plugins() -> Iterator[None]:
    with fakes.installed({name: f"{name.replace('-', '_')}:Mine" for name in OTHERS}) as folder:
        for name, source in OTHERS.items():
            (folder / f"{name.replace('-', '_')}.py").write_text(f"from isorun_conformance import fakes\n{source}\n")
        yield


def test_optional_abilities_are_those_that_an_executable_implements(bert, tmp_path):
    cache = Cache(tmp_path)
    model = lowering.ModelGraphs(source.open_model(bert, cache), cache).lower(("primitive",))
    executables = {name: registry.get(name).compile(model, CompileConfig()) for name in ("reference", "ort-cpu")}
    assert not isinstance(executables["reference"], SupportsBinding | SupportsDeviceArrays | SupportsDeviceTimes)
    assert isinstance(executables["ort-cpu"], SupportsBinding)
    for executable in executables.values():
        executable.close()


@pytest.mark.parametrize(
    ("name", "reason", "remedy"),
    [
        (
            "future",
            "isorun-fakes 0 implements version 99 of the plugin contract, and isorun .* supports 2",
            "isorun",
        ),
        ("past", "isorun-fakes 0 implements version 0 of the plugin contract", "isorun-fakes"),
        ("odd", "must declare an integer `contract`, got '2'", "isorun-fakes"),
        ("undeclared", "must declare an integer `contract`, got None", "isorun-fakes"),
        ("new-name", "isorun-fakes 0 was not written for isorun .*Teleport", "isorun isorun-fakes"),
        ("new-field", "isorun-fakes 0 was not written for isorun .*teleports", "isorun isorun-fakes"),
    ],
)
def test_plugin_of_another_contract_is_refused(name, reason, remedy):
    with pytest.raises(BackendUnavailable) as caught:
        registry.get(name)
    assert re.search(reason, caught.value.reason)
    assert caught.value.remedy.endswith(f"pip install --upgrade {remedy}")


OF_COMMANDS = {"isorun_deepsparse/command.py", "isorun_deepsparse/prune.py"}
"""Files behind ``isorun.commands``: they change graphs, as isorun's own commands do, and are released with it."""
OF_BACKENDS = [
    path
    for path in sorted(ROOT.glob("plugins/*/isorun_*/**/*.py"))
    if f"{path.parent.name}/{path.name}" not in OF_COMMANDS
]


@pytest.mark.parametrize("path", OF_BACKENDS, ids=lambda path: path.parent.name)
def test_plugins_of_this_repository_import_the_public_module_only(path):
    """import-linter checks the same for the backends."""
    imported = re.findall(r"^\s*(?:from|import) (isorun[\w.]*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    own = path.relative_to(ROOT / "plugins").parts[1]
    assert {name for name in imported if name.partition(".")[0] != own} <= {"isorun.plugin", "isorun.plugin.fused"}
