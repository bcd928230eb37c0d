"""Links to isorun for another interpreter."""

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import isorun
from isorun.isolation.environments import source

ROOT = Path(__file__).parents[4]
SESSION = """
import sys, numpy as np, isorun, isorun_backends
assert isorun.__file__.startswith(sys.argv[3]), isorun.__file__
assert isorun_backends.__file__.startswith(sys.argv[3])
with isorun.Session(sys.argv[1], "ort-cpu", environment=sys.argv[2]) as session:
    print(session.run(None, {"x": np.ones(2, np.float32)})[0].tolist(), session.provenance.environment["name"])
"""


def test_requirements_without_extras():
    assert {each.partition(">")[0] for each in source.requirements()} == {
        "numpy",
        "stevedore",
        "platformdirs",
        "filelock",
    }


def test_links_to_isorun_and_its_backends_alone(tmp_path):
    folder = source.links(tmp_path)
    assert (folder / "isorun").resolve() == Path(isorun.__file__).parent.resolve()
    information = f"isorun-{importlib.metadata.version('isorun')}.dist-info"
    assert {path.name for path in folder.iterdir()} == {"isorun", "isorun_backends", information}
    assert source.links(tmp_path) == folder
    assert [path for path in folder.parent.iterdir() if path != folder] == []
    points = importlib.metadata.Distribution.at(folder / information).entry_points
    assert {point.group for point in points} == {"isorun.backends"}
    assert "ort-cpu" in points.names


def test_isorun_from_a_wheel(tmp_path, own, neg):
    """A wheel is installed among other packages, which a worker must not see."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (site / "other_package.py").write_text("raise RuntimeError('seen')")
    ran = subprocess.run(
        [sys.executable, "-P", "-c", SESSION, neg, own, str(site)],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.stderr == ""
    assert ran.stdout == f"[-1.0, -1.0] {own}\n"
