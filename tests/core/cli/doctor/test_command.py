"""``isorun doctor``: what it prints, its exit codes, and that it changes nothing."""

from pathlib import Path

import pytest

import sites
from isorun.isolation import environments
from isorun.system.cache import ENVIRONMENT_VARIABLE, Cache
from isorun.types import Finding


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders that it examines."""
    for variable, folder in (
        (ENVIRONMENT_VARIABLE, "cache"),
        (environments.FOLDER_VARIABLE, "environments"),
        ("XDG_CACHE_HOME", "xdg"),
        ("PYTHONPATH", "site"),
    ):
        monkeypatch.setenv(variable, str(tmp_path / folder))
    return tmp_path


def everything(folder: Path) -> dict[Path, tuple[int, bytes | None]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None) for path in folder.rglob("*")
    }


def test_findings_have_commands_and_nothing_is_changed(isorun, home, monkeypatch):
    sites.examine_only(monkeypatch, "boom", "ort-cpu", "openvino")
    cache = Cache()
    cache.get_or_make("lowered", "one", lambda folder: {"bytes": (folder / "model.onnx").write_bytes(b"model")})
    (cache.root / "lowered" / "one" / "model.onnx").write_bytes(b"")
    broken = home / "environments" / "broken"
    broken.mkdir(parents=True)
    (broken / "environment.json").write_text('{"python": "3.11.7", "install": []}')
    sites.install(home / "site", "boom-dist", "1.0", {"boom.py": "import gone"}, {"boom": "boom:Boom"})
    before = everything(home)
    ran = isorun("doctor", "--json")
    assert everything(home) == before
    assert (ran.code, ran.err) == (1, "")
    findings = {finding["subject"]: finding for finding in ran.json}
    assert findings["the environment broken"]["severity"] == "error"
    assert findings["the backend boom"]["severity"] == "error"
    (cache_finding,) = (finding for subject, finding in findings.items() if subject.startswith("the cache"))
    assert (cache_finding["severity"], cache_finding["command"]) == ("warning", "isorun cache --clear")
    assert "lowered/one is damaged: " in cache_finding["what"]
    assert len(findings) == 3  # that nothing is wrong with any backend here is tested in test_installation.py


@pytest.mark.parametrize(
    ("findings", "code", "text"),
    [
        ([], 0, "No problems found\n"),
        ([Finding("x", "error", "it broke", "somehow", "fix it")], 1, "error: x: it broke\n  somehow\n  fix it\n"),
    ],
)
def test_prints_findings(isorun, monkeypatch, findings, code, text):
    monkeypatch.setattr("isorun.cli.doctor.examine", lambda **_: findings)
    ran = isorun("doctor")
    assert (ran.code, ran.out) == (code, text)
