"""The archives in tests/fixtures."""

import tarfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "fixtures"


def unpack(name: str, folder: Path, part: str = "") -> Path:
    """Unpack an archive, or one of its folders, below a folder.

    Returns:
        Where it is.
    """
    with tarfile.open(FOLDER / f"{name}.tar.xz") as packed:
        members = [member for member in packed.getmembers() if member.name.startswith(f"{part}/" if part else "")]
        packed.extractall(folder, members, filter="data")
    return folder / part
