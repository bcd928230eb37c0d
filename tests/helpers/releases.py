"""Releases of a made-up runtime, in a folder that pip and a stand-in for uv use in place of a package index."""

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import programs
from isorun.isolation.environments import FOLDER_VARIABLE

PACKAGE = "isorun-paced"
_MODULE = """
import numpy as np
from dataclasses import replace
from isorun_fakes import Fake, FakeExecutable

class Paced(Fake):
    capabilities = replace(Fake.capabilities, options={})

    def compile(self, model, config):
        executable = super().compile(model, replace(config, options={"do": %(do)r, "seconds": %(seconds)r}))
        executable.memory = np.ones(%(mib)d << 17)
        return executable
"""
_UV = """#!/bin/sh
for last; do :; done
case "$*" in
venv*)
    packages="$last/lib/python3.0/site-packages"
    mkdir -p "$last/bin" "$packages"
    printf '#!/bin/sh\\nPYTHONPATH="%s:{fakes}:$PYTHONPATH" exec "{python}" "$@"\\n' "$packages" > "$last/bin/python"
    chmod +x "$last/bin/python";;
pip*)
    wheel="{folder}/isorun_paced-${{last#*==}}-py3-none-any.whl"
    [ -f "$wheel" ] || {{ echo "there is no such release"; exit 4; }}
    "{python}" -m zipfile -e "$wheel" "${{4%/bin/python}}/lib/python3.0/site-packages";;
esac
"""


def publish(folder: Path, releases: Mapping[str, Mapping[str, object]], fakes: Path) -> dict[str, str]:
    """Make a wheel of each release of :data:`PACKAGE`, whose backend ``paced`` behaves as its mapping says.

    Args:
        folder: an empty folder.
        releases: by version, changes of the defaults ``do``, ``seconds`` and ``mib``; ``{}`` behaves well.
        fakes: the folder of ``isorun_fakes``.

    Returns:
        Environment variables with which isorun finds and installs them.
    """
    for version, behaviour in releases.items():
        information = f"isorun_paced-{version}.dist-info"
        with zipfile.ZipFile(folder / f"isorun_paced-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("isorun_paced.py", _MODULE % {"do": "right", "seconds": 0.0, "mib": 0, **behaviour})
            wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n")
            wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{information}/entry_points.txt", "[isorun.backends]\npaced = isorun_paced:Paced\n")
            wheel.writestr(f"{information}/RECORD", "")
    uv = programs.write(folder / "bin" / "uv", _UV.format(python=sys.executable, folder=folder, fakes=fakes))
    return {
        "PATH": f"{uv.parent}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        FOLDER_VARIABLE: str(folder / "environments"),
    }
