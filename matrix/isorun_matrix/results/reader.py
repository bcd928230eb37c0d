"""Read the files of a run: validated records, or an error that names the file and the remedy.

Another version or machine may have written a file, or someone may have edited it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from isorun.errors import InvalidFeeds, SpecError
from isorun.system import json_files
from isorun.system.cache import sha256
from isorun_matrix.measurement import feeds
from isorun_matrix.results.layout import JOB, RESULT, SAMPLES
from isorun_matrix.results.records import SCHEMA, Content, reportable
from isorun_matrix.text import cut

_SHOWN = 200  # characters of a message about a file's content


def read(path: Path, kind: type[Content]) -> Content:
    """A record from a file. Raises ``SpecError`` if the file cannot be read, is damaged, or is of another schema."""
    content = _object(path)
    if content.get("schema") != SCHEMA:
        schema = content.get("schema")
        newer = isinstance(schema, int) and schema > SCHEMA
        remedy = "It was written by a newer version: pip install --upgrade isorun" if newer else _remedy(path)
        shown = cut(repr(schema), _SHOWN)
        raise SpecError(f"{path} has schema {shown}; this version of isorun reads schema {SCHEMA}. {remedy}")
    return _validated(path, content, kind)


def read_unversioned(path: Path, kind: type[Content]) -> Content:
    """A record from a file that has no schema. Raises as :func:`read`."""
    return _validated(path, _object(path), kind)


def _validated(path: Path, content: Mapping[str, Any], kind: type[Content]) -> Content:
    try:
        return kind.from_plain(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        message = cut(f"{place}: {first['msg']}" if place else first["msg"], _SHOWN)
        raise SpecError(f"{path} is damaged: {message}. {_remedy(path)}") from None


def read_samples(path: Path) -> np.ndarray:
    """The samples of a round: (runs,), nanoseconds. Raises ``SpecError`` if the file is missing or damaged."""
    try:
        samples = feeds.load(path, "latency").get("ns", np.empty(0))
    except InvalidFeeds as error:
        raise SpecError(f"{error}.") from error
    if not (samples.ndim == 1 and samples.size and samples.dtype.kind == "i"):
        raise SpecError(f"{path} is damaged: expected samples in nanoseconds. {_remedy(path)}")
    return samples


def job_of(folder: Path) -> dict[str, Any]:
    """The job in a folder, as plain data. Raises ``SpecError`` if the file cannot be read or is damaged."""
    job = _object(folder / JOB).get("job")
    if not isinstance(job, dict):
        raise SpecError(f"{folder / JOB} is damaged: expected a job. {_remedy(folder / JOB)}")
    return job


def seal(content: Mapping[str, Any]) -> str:
    """SHA-256 of the members of a record, but the seal itself."""
    members = {name: value for name, value in content.items() if name != "seal"}
    return sha256(json.dumps(reportable(members), sort_keys=True).encode())


def is_sealed(path: Path) -> bool:
    """Whether a record is what was written; not of versions that wrote no seal. Raises ``SpecError`` if the file cannot
    be read or is damaged."""
    content = _object(path)
    return content.get("seal") == seal(content)


def is_job(folder: Path) -> bool:
    """Whether a folder has the record of a job that isorun ran there."""
    for name, members in ((RESULT, {"schema", "key"}), (JOB, {"time_limit"})):
        try:
            content = json_files.read(folder / name)
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and members <= content.keys():
            return True
    return False


def _object(path: Path) -> dict[str, Any]:
    try:
        content = reportable(json_files.read(path))
    except OSError as error:
        raise SpecError(f"Cannot read {path}: {error.strerror}") from error
    except RecursionError:
        raise SpecError(f"{path} is damaged: its data is nested too deeply. {_remedy(path)}") from None
    except ValueError as error:
        raise SpecError(f"{path} is damaged: not valid JSON ({cut(str(error), _SHOWN)}). {_remedy(path)}") from error
    if not isinstance(content, dict):
        raise SpecError(f"{path} is damaged: expected an object. {_remedy(path)}")
    return content


def _remedy(path: Path) -> str:
    if path.name in (JOB, RESULT, SAMPLES):
        return f"Remove the folder {path.parent} and run the matrix with --resume."
    return "Restore the file, or choose another --out."
