"""Files of feeds: ``.npz``, an array for each input."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

import numpy as np

from isorun.errors import InvalidFeeds


def load(path: Path) -> dict[str, np.ndarray]:
    """The feeds in a file. Raises ``InvalidFeeds`` if it is not an ``.npz`` file of plain arrays."""
    if path.suffix != ".npy" and not zipfile.is_zipfile(path):  # NumPy would try to unpickle it
        raise InvalidFeeds(f"{path} is not an .npz file. Write one with numpy.savez(path, NAME=array, ...)")
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.ndarray):
            with loaded:
                if repeated := [name for name, count in Counter(loaded.files).items() if count > 1]:
                    raise InvalidFeeds(f"{path} has the array {repeated[0]!r} twice. Keep one")
                return {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidFeeds(
            f"{path} is not an .npz file of plain arrays ({error}). Write one with numpy.savez"
        ) from error
    raise InvalidFeeds(f"{path} holds one unnamed array. Write it with numpy.savez(path, NAME=array)")
