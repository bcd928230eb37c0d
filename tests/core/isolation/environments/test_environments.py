"""Environments made, taken, refused, broken and removed."""

from __future__ import annotations

import json
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

from isolation import wait_until
from isorun.errors import EnvironmentBroken, EnvironmentNotFound, IsorunError
from isorun.isolation import environments

OWN = ".".join(platform.python_version_tuple()[:2])
PYTHON = 'mkdir -p "$folder/bin" "$folder/lib/python3.0/site-packages" && ln -s /bin/true "$folder/bin/python"'


@pytest.fixture
def fake_uv(tmp_path, monkeypatch):
    """A uv that makes an environment of nothing; what it does in place of installing is given."""

    def make(installing: str) -> None:
        path = tmp_path / "bin" / "uv"
        path.parent.mkdir(exist_ok=True)
        lines = [
            "for folder; do :; done  # the last argument",
            f'if [ "$1" = venv ]; then {PYTHON}; else {installing}; fi',
        ]
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")

    return make


def left(folder: Path) -> list[str]:
    """What is there but for what all environments share."""
    return sorted(path.name for path in folder.iterdir() if path.name not in (".locks", ".source"))


@pytest.mark.parametrize("with_uv", [True, False], ids=["uv", "pip"])
def test_a_real_one(folder, monkeypatch, with_uv):
    """isorun is importable there with what it needs and nothing more, and a package that needs isorun finds it."""
    if with_uv and not shutil.which("uv"):
        pytest.skip("uv is not installed")
    if not with_uv:
        there = [each for each in os.environ["PATH"].split(os.pathsep) if not (Path(each) / "uv").is_file()]
        monkeypatch.setenv("PATH", os.pathsep.join(there))
    made = environments.create("light", install=["tabulate==0.9.0"])
    assert made == environments.get("light")
    assert environments.names() == ["light"]
    assert set(made.packages()) - {"pip", "setuptools"} == {
        *("numpy", "stevedore", "platformdirs", "filelock", "tabulate")
    }
    assert made.version == platform.python_version()
    assert made.size() > 10_000_000
    imports = "import isorun.isolation.worker.server, isorun_backends, tabulate, sys"
    script = f"{imports}; print(isorun.__file__); print(sys.prefix)"
    for variables in (made.variables(), {}):  # also on its own, as for who looks in there
        ran = subprocess.run([made.python, "-c", script], env=variables, capture_output=True, text=True, check=True)
        found, prefix = ran.stdout.splitlines()
        assert Path(found).resolve() == Path(environments.__file__).parents[2].resolve() / "__init__.py"
        assert prefix == str(made.folder)
    installer = ["uv", "pip", "check", "--python"] if with_uv else [made.python, "-m", "pip", "check"]
    subprocess.run([*installer, *([made.python] if with_uv else [])], check=True, capture_output=True)
    environments.remove("light")
    assert left(folder) == []


def test_one_that_was_made_from_the_same_is_taken(folder, fake_uv):
    fake_uv("true")
    made = environments.create("e", install=["a", "b"])
    fake_uv("exit 1")
    assert environments.create("e", install=["b", "a"]) == made
    assert environments.create("e", python=OWN, install=["a", "b"]) == made
    for asked in ({"install": ["a"]}, {"install": ["a", "b"], "python": "3.42"}):
        with pytest.raises(IsorunError, match=r"'e' was made with Python .* and a, b, not with .*isorun env remove e"):
            environments.create("e", **asked)


def test_a_failure_to_install_says_why_and_leaves_nothing(folder, fake_uv):
    fake_uv("echo 'no such package: nonesuch'; exit 4")
    with pytest.raises(EnvironmentBroken) as caught:
        environments.create("e", install=["nonesuch"])
    message = str(caught.value)
    assert "The environment 'e' cannot be made: `" in message
    assert "nonesuch` ended with exit code 4:\nno such package: nonesuch" in message
    assert left(folder) == []
    assert environments.names() == []


def test_a_python_that_is_not_there_leaves_nothing(folder):
    with pytest.raises(EnvironmentBroken, match=r"no Python 3\.42 here"):
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


def test_ctrl_c_leaves_nothing(folder, fake_uv):
    """The installer is ended first: it must not write on behind one's back."""
    fake_uv('while :; do touch "$(dirname "$4")/../more"; sleep 0.01; done')
    process = subprocess.Popen([sys.executable, "-c", CREATE])
    assert wait_until(lambda: (folder / "e" / "more").exists() or process.poll() is not None)
    assert environments.names() == []
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert left(folder) == []
    time.sleep(0.1)
    assert left(folder) == []


def group_is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_half_made_one_is_not_seen_and_is_cleared(folder, fake_uv):
    fake_uv("sleep 100")
    process = subprocess.Popen([sys.executable, "-c", CREATE], start_new_session=True)
    assert wait_until(lambda: (folder / "e" / "bin").exists())
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: not group_is_alive(process.pid))
    (folder / "e" / "rubbish").touch()
    assert environments.names() == []
    with pytest.raises(EnvironmentNotFound):
        environments.get("e")
    fake_uv("true")
    environments.create("e")
    assert not (folder / "e" / "rubbish").exists()


def test_removes_an_environment_whose_creation_was_interrupted(folder, fake_uv):
    fake_uv("sleep 100")
    process = subprocess.Popen([sys.executable, "-c", CREATE], start_new_session=True)
    assert wait_until(lambda: (folder / "e" / "bin").exists())
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: not group_is_alive(process.pid))
    environments.remove("e")
    assert left(folder) == []


OTHERS = {
    "a file": {"thesis.txt": "all of it"},
    "nothing": {},
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
    assert {path.name: path.read_text() for path in (folder / "data").iterdir()} == files
    assert left(folder) == ["data"]


@pytest.mark.parametrize("files", [{}, {"thesis.txt": ""}, {"environment.json": '{"python": "3.11.7", "install": []}'}])
@pytest.mark.parametrize("at", ["data", ".data.isorun-part"])
def test_never_deletes_through_a_symbolic_link(folder, fake_uv, tmp_path, files, at):
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
    assert {path.name: path.read_text() for path in target.iterdir()} == files
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
    assert (folder / "e").read_text() == "mine"


def test_lists_no_folder_whose_name_is_not_an_environments(folder):
    for name in ("a b", ".hidden"):
        (folder / name).mkdir(parents=True)
        (folder / name / "environment.json").write_text('{"python": "3.11.7", "install": []}')
    assert environments.names() == []


def test_two_that_want_the_same_make_it_once(folder, fake_uv, tmp_path):
    fake_uv(f"sleep 0.3; echo made >> {tmp_path}/count")

    def create(_: int) -> int:
        return subprocess.run([sys.executable, "-c", CREATE], timeout=60, check=False).returncode

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(create, range(3))) == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "made\n"


@pytest.mark.parametrize(
    "name", ["", ".hidden", "a/b", "..", "../x", "/tmp/x", "e/..", "e\n", "a b", "x" * 65, "-rf", "é"]
)
def test_names_that_cannot_be(folder, name):
    for call in (environments.create, environments.get, environments.remove):
        with pytest.raises(IsorunError, match="cannot be an environment's name"):
            call(name)


@pytest.mark.parametrize("requirement", ["--index-url=x", "-e .", "", " "])
def test_requirements_that_are_none(folder, requirement):
    with pytest.raises(IsorunError, match="is nothing to install"):
        environments.create("e", install=[requirement])


def test_a_path_means_the_same_wherever_it_is_asked_for(folder, fake_uv, tmp_path, monkeypatch):
    fake_uv("true")
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    made = environments.create("e", install=["./mine[extra]", "onnxruntime"])
    assert made.install == (f"{tmp_path}/mine[extra]", "onnxruntime")
    monkeypatch.chdir(tmp_path / "mine")
    assert environments.create("e", install=["../mine[extra]", "onnxruntime"]) == made
    with pytest.raises(IsorunError, match=f"'./none' is nothing to install: there is no {tmp_path}/mine/none"):
        environments.create("f", install=["./none"])


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("plugins/mine", "{here}/plugins/mine"),
        ("plugins/mine[all]", "{here}/plugins/mine[all]"),
        ("plugins/none", "plugins/none"),
        ("plugins", "plugins"),  # a name, as pip takes it, whatever lies here
        ("mine @ https://example.org/mine.whl", "mine @ https://example.org/mine.whl"),
    ],
)
def test_a_path_may_begin_with_a_name(tmp_path, text, means):
    (tmp_path / "plugins" / "mine").mkdir(parents=True)
    assert environments.requirement(text, tmp_path) == means.format(here=tmp_path)


def test_one_that_is_not_there(folder, own):
    with pytest.raises(EnvironmentNotFound, match="no environment 'x'"):
        environments.get("x")
    with pytest.raises(EnvironmentNotFound):
        environments.remove("x")
    (folder / "ovn").mkdir(parents=True)
    (folder / "ovn" / "environment.json").write_text('{"python": "3.11.7", "install": []}')
    with pytest.raises(EnvironmentNotFound, match=r"did you mean 'ovn'\?"):
        environments.get("ovm")


@pytest.mark.parametrize("record", ["", "{", "[]", '{"python": "3.11"}'])
def test_a_record_that_cannot_be_read(folder, record):
    (folder / "e").mkdir(parents=True)
    (folder / "e" / "environment.json").write_text(record)
    with pytest.raises(EnvironmentBroken, match=r"record of the environment 'e' cannot be read.*rm -r"):
        environments.get("e")
    with pytest.raises(EnvironmentBroken, match="not a record"):
        environments.remove("e")
    assert (folder / "e" / "environment.json").read_text() == record


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(environments.FOLDER_VARIABLE, str(tmp_path / "file" / "below"))
    with pytest.raises(EnvironmentBroken, match=r"cannot be written to.*\$ISORUN_ENVIRONMENTS_DIR"):
        environments.create("e")


def test_what_a_worker_does_not_inherit(own, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("PYTHONHOME", "/mine")
    monkeypatch.setenv("MINE", "kept")
    variables = environments.get(own).variables("/the/cache")
    assert (variables["MINE"], variables["ISORUN_CACHE_DIR"]) == ("kept", "/the/cache")
    assert "PYTHONHOME" not in variables
    assert "/mine" not in variables["PYTHONPATH"]


def test_the_users_folder_unless_another_is_chosen(monkeypatch, tmp_path):
    monkeypatch.delenv(environments.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert environments.root() == tmp_path / "isorun" / "environments"


def test_the_remedy_is_a_command_that_can_be_pasted(folder):
    made = environments.Environment("e", folder / "e", "3.11.7", ("onnxruntime>=1.24", "./mine"))
    assert made.remedy() == (
        "Make it anew: isorun env remove e && "
        "isorun env create e --python 3.11 --install 'onnxruntime>=1.24' --install ./mine"
    )
    assert json.dumps(made.install)
