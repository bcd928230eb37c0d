"""Creating, reusing, rejecting and removing environments."""

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import programs
from isolation import wait_until
from isorun.errors import EnvironmentBroken, EnvironmentNotFound, IsorunError
from isorun.isolation import environments

OWN = ".".join(platform.python_version_tuple()[:2])
PYTHON = 'mkdir -p "$folder/bin" "$folder/lib/python3.0/site-packages" && ln -s /bin/true "$folder/bin/python"'


@pytest.fixture
def fake_uv(tmp_path, monkeypatch):
    """A uv that creates an empty environment and runs a shell command in place of installing."""

    def make(installing: str) -> None:
        lines = [
            "for folder; do :; done  # the last argument",
            f'if [ "$1" = venv ]; then {PYTHON}; else {installing}; fi',
        ]
        path = programs.write(tmp_path / "bin" / "uv", "#!/bin/sh", *lines)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")

    return make


def left(folder: Path) -> list[str]:
    """The contents of the folder, without what all environments share."""
    return sorted(path.name for path in folder.iterdir() if path.name not in (".locks", ".source"))


@pytest.mark.parametrize("with_uv", [True, False], ids=["uv", "pip"])
def test_create_and_remove(folder, monkeypatch, with_uv):
    """isorun and its requirements are importable there, and nothing else."""
    if with_uv and not shutil.which("uv"):
        pytest.skip("uv is not installed")
    if not with_uv:
        without_uv = [folder for folder in os.environ["PATH"].split(os.pathsep) if not (Path(folder) / "uv").is_file()]
        monkeypatch.setenv("PATH", os.pathsep.join(without_uv))
    environment = environments.create("light", install=["tabulate==0.9.0"])
    assert environment == environments.get("light")
    assert environments.names() == ["light"]
    assert set(environment.packages()) - {"pip", "setuptools"} == {
        *("numpy", "stevedore", "platformdirs", "filelock", "tabulate")
    }
    assert environment.version == platform.python_version()
    assert environment.size() > 10_000_000
    imports = "import isorun.isolation.worker.server, isorun_backends, tabulate, sys"
    script = f"{imports}; print(isorun.__file__); print(sys.prefix)"
    for variables in (environment.variables(), {}):  # also without PYTHONPATH
        ran = subprocess.run(
            [environment.python, "-c", script], env=variables, capture_output=True, text=True, check=True
        )
        imported, prefix = ran.stdout.splitlines()
        assert Path(imported).resolve() == Path(environments.__file__).parents[2].resolve() / "__init__.py"
        assert prefix == str(environment.folder)
    installer = ["uv", "pip", "check", "--python"] if with_uv else [environment.python, "-m", "pip", "check"]
    subprocess.run([*installer, *([environment.python] if with_uv else [])], check=True, capture_output=True)
    environments.remove("light")
    assert left(folder) == []


def test_existing_environment_is_reused_or_rejected(folder, fake_uv):
    fake_uv("true")
    environment = environments.create("e", install=["a", "b"])
    fake_uv("exit 1")
    assert environments.create("e", install=["b", "a"]) == environment
    assert environments.create("e", python=OWN, install=["a", "b"]) == environment
    for asked in ({"install": ["a"]}, {"install": ["a", "b"], "python": "3.42"}):
        with pytest.raises(IsorunError, match=r"'e' already exists with Python .* and a, b.*isorun env remove e"):
            environments.create("e", **asked)


def test_failed_installation_leaves_nothing(folder, fake_uv):
    fake_uv("echo 'no such package: nonesuch'; exit 4")
    with pytest.raises(EnvironmentBroken) as caught:
        environments.create("e", install=["nonesuch"])
    message = str(caught.value)
    assert "exited with code 4:\nno such package: nonesuch" in message
    assert left(folder) == []
    assert environments.names() == []


def test_missing_python_leaves_nothing(folder):
    with pytest.raises(EnvironmentBroken, match=r"Python 3\.42 was not found"):
        environments.create("e", python="3.42")
    assert left(folder) == []


CREATE = """
import sys
from isorun.isolation import environments
try:
    environments.create("e")
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_interrupt_kills_the_installer_and_leaves_nothing(folder, fake_uv):
    fake_uv('while :; do touch "$(dirname "$4")/../more"; sleep 0.01; done')
    process = subprocess.Popen([sys.executable, "-c", CREATE])
    assert wait_until(lambda: (folder / "e" / "more").exists() or process.poll() is not None)
    assert environments.names() == []
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert left(folder) == []
    time.sleep(0.1)
    assert left(folder) == []


@pytest.mark.parametrize("call", [environments.create, environments.remove])
def test_partial_environment_is_replaced_or_removed(folder, fake_uv, call, tmp_path):
    asleep = tmp_path / "asleep"
    fake_uv(f"touch '{asleep}'; exec sleep 100")
    process = subprocess.Popen([sys.executable, "-c", CREATE])
    assert wait_until(asleep.exists)
    process.kill()  # which kills the installer too
    process.wait()
    (folder / "e" / "rubbish").touch()
    assert environments.names() == []
    with pytest.raises(EnvironmentNotFound):
        environments.get("e")
    if call is environments.remove:
        call("e")
        assert left(folder) == []
    else:
        fake_uv("true")
        call("e")
        assert not (folder / "e" / "rubbish").exists()


OTHERS = {
    "a file": {"thesis.txt": "all of it"},
    "no file": {},
    "another tool's environment.json": {"environment.json": '{"name": "prod"}'},
    "a record that is a list": {"environment.json": "[]"},
    "another tool's environment.json.partial": {"environment.json.partial": "{}"},
}


@pytest.mark.parametrize("files", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("call", [environments.create, environments.remove])
def test_keeps_a_folder_that_isorun_did_not_create(folder, fake_uv, call, files):
    fake_uv("true")
    (folder / "data").mkdir(parents=True)
    for name, content in files.items():
        (folder / "data" / name).write_text(content)
    with pytest.raises(EnvironmentBroken):
        call("data")
    assert {path.name: path.read_text(encoding="utf-8") for path in (folder / "data").iterdir()} == files
    assert left(folder) == ["data"]


@pytest.mark.parametrize("files", [{}, {"thesis.txt": ""}, {"environment.json": '{"python": "3.11.7", "install": []}'}])
@pytest.mark.parametrize("at", ["data", ".data.isorun-part"])
def test_never_follows_a_symbolic_link(folder, fake_uv, tmp_path, files, at):
    fake_uv("true")
    if at != "data":
        environments.create("data")
    target = tmp_path / "target"
    target.mkdir()
    for name, content in files.items():
        (target / name).write_text(content)
    (folder / at).parent.mkdir(exist_ok=True)
    (folder / at).symlink_to(target)
    with pytest.raises(EnvironmentBroken, match="symbolic link"):
        environments.remove("data")
    assert {path.name: path.read_text(encoding="utf-8") for path in target.iterdir()} == files
    assert (folder / at).is_symlink()
    assert (folder / "data").exists()


def test_does_not_create_through_a_symbolic_link(folder, fake_uv, tmp_path):
    fake_uv("true")
    folder.mkdir()
    for name, target in {"dangling": tmp_path / "nothing", "linked": tmp_path}.items():
        (folder / name).symlink_to(target)
        with pytest.raises(EnvironmentBroken, match="symbolic link"):
            environments.create(name)
    assert not (tmp_path / "nothing").exists()


def test_keeps_a_file_in_place_of_an_environment(folder):
    folder.mkdir()
    (folder / "e").write_text("mine")
    with pytest.raises(EnvironmentBroken, match="not a folder"):
        environments.remove("e")
    assert (folder / "e").read_text(encoding="utf-8") == "mine"


def test_does_not_list_folders_with_invalid_names(folder):
    for name in ("a b", ".hidden"):
        (folder / name).mkdir(parents=True)
        (folder / name / "environment.json").write_text('{"python": "3.11.7", "install": []}')
    assert environments.names() == []


def test_concurrent_calls_create_it_once(folder, fake_uv, tmp_path):
    fake_uv(f"sleep 0.3; echo made >> {tmp_path}/count")

    def create(_: int) -> int:
        return subprocess.run([sys.executable, "-c", CREATE], timeout=60, check=False).returncode

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(create, range(3))) == [0, 0, 0]
    assert (tmp_path / "count").read_text(encoding="utf-8") == "made\n"


@pytest.mark.parametrize(
    "name", ["", ".hidden", "a/b", "..", "../x", "/tmp/x", "e/..", "e\n", "a b", "x" * 65, "-rf", "é"]
)
def test_rejects_invalid_names(folder, name):
    for call in (environments.create, environments.get, environments.remove):
        with pytest.raises(IsorunError, match="Invalid environment name"):
            call(name)


@pytest.mark.parametrize("requirement", ["--index-url=x", "-e .", "", " "])
def test_rejects_invalid_requirements(folder, requirement):
    with pytest.raises(IsorunError, match="install must be requirements"):
        environments.create("e", install=[requirement])


def test_relative_paths_are_made_absolute(folder, fake_uv, tmp_path, monkeypatch):
    fake_uv("true")
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    made = environments.create("e", install=["./mine[extra]", "onnxruntime"])
    assert made.install == (f"{tmp_path}/mine[extra]", "onnxruntime")
    monkeypatch.chdir(tmp_path / "mine")
    assert environments.create("e", install=["../mine[extra]", "onnxruntime"]) == made
    with pytest.raises(IsorunError, match=f"{tmp_path}/mine/none does not exist"):
        environments.create("f", install=["./none"])


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("plugins/mine", "{here}/plugins/mine"),
        ("plugins/mine[all]", "{here}/plugins/mine[all]"),
        ("plugins/none", "plugins/none"),
        ("plugins", "plugins"),  # a name, as for pip
        ("mine @ https://example.org/mine.whl", "mine @ https://example.org/mine.whl"),
    ],
)
def test_relative_path_without_a_dot(tmp_path, text, means):
    (tmp_path / "plugins" / "mine").mkdir(parents=True)
    assert environments.requirement(text, tmp_path) == means.format(here=tmp_path)


def test_unknown_environment(folder, own):
    with pytest.raises(EnvironmentNotFound, match="no environment 'x'"):
        environments.get("x")
    with pytest.raises(EnvironmentNotFound):
        environments.remove("x")
    (folder / "ovn").mkdir(parents=True)
    (folder / "ovn" / "environment.json").write_text('{"python": "3.11.7", "install": []}')
    with pytest.raises(EnvironmentNotFound, match=r"did you mean 'ovn'\?"):
        environments.get("ovm")


@pytest.mark.parametrize("record", ["", "{", "[]", '{"python": "3.11"}'])
def test_record_that_cannot_be_read(folder, record):
    (folder / "e").mkdir(parents=True)
    (folder / "e" / "environment.json").write_text(record)
    with pytest.raises(EnvironmentBroken, match=r"record of the environment 'e'.*rm -r"):
        environments.get("e")
    with pytest.raises(EnvironmentBroken, match="not a record"):
        environments.remove("e")
    assert (folder / "e" / "environment.json").read_text(encoding="utf-8") == record


def test_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(environments.FOLDER_VARIABLE, str(tmp_path / "file" / "below"))
    with pytest.raises(EnvironmentBroken, match=r"\$ISORUN_ENVIRONMENTS_DIR"):
        environments.create("e")


def test_variables_of_a_worker(own, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("PYTHONHOME", "/mine")
    monkeypatch.setenv("MINE", "kept")
    variables = environments.get(own).variables("/the/cache")
    assert (variables["MINE"], variables["ISORUN_CACHE_DIR"]) == ("kept", "/the/cache")
    assert "PYTHONHOME" not in variables
    assert "/mine" not in variables["PYTHONPATH"]


def test_environments_are_below_the_users_data_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv(environments.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert environments.root() == tmp_path / "isorun" / "environments"
