"""``isorun embed``: a text file in, a file of vectors out, which continues after an interruption."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isorun as library
import sentence_models
import tiny
from isorun.cli import embed, main
from isorun.cli.vectors_file import VectorsFile

LINES = ["a b", "", "c cab"]
WIDTH = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_models.write_sentence_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


@pytest.fixture(scope="module")
def written(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the vectors of the texts, ``vectors.npy``, and their record."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "texts.txt").write_text("\n".join(LINES))
    words = ("embed", folder / "texts.txt", "-o", folder / "vectors.npy", "--model", model, "--backend", "ort-cpu")
    assert main([str(word) for word in words]) == 0
    return folder


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that commands add; the first one is interrupted after two."""
    monkeypatch.setattr(embed, "_STEP", 2)
    add, added = VectorsFile.add, []

    def interrupted(part: Any, rows: np.ndarray) -> None:
        add(part, rows)
        added.append(len(rows))
        if added == [2]:
            raise KeyboardInterrupt

    monkeypatch.setattr(VectorsFile, "add", interrupted)
    return added


def test_an_interrupted_command_continues(
    isorun: Callable[..., Any], model: Path, texts: Path, tmp_path: Path, added: list[int]
) -> None:
    output = tmp_path / "vectors.npy"
    command = ("embed", texts, "-o", output, "--model", model, "--backend", "ort-cpu")
    ran = isorun(*command)
    assert ran.code == 130
    assert "2 of 3 lines are saved. Run the same command to continue" in ran.err
    assert not output.exists()
    ran = isorun(*command)
    assert (ran.code, added) == (0, [2, 1])
    assert "Continuing after 2 of 3 lines" in ran.err
    assert f"{output}: 3 x {WIDTH}, float32" in ran.out
    assert {path.name for path in tmp_path.glob("vectors*")} == {"vectors.npy", "vectors.identity.json"}
    with library.Embedder(model, backend="ort-cpu") as embedder:
        np.testing.assert_allclose(np.load(output), embedder.embed(LINES), atol=1e-6)


def test_a_model_that_was_changed_starts_again(
    isorun: Callable[..., Any], model: Path, texts: Path, tmp_path: Path, added: list[int]
) -> None:
    changed, output = tmp_path / "model", tmp_path / "vectors.npy"
    shutil.copytree(model, changed)
    command = ("embed", texts, "-o", output, "--model", changed, "--backend", "ort-cpu")
    assert isorun(*command).code == 130
    tiny.edit(changed / "1_Pooling" / "config.json", pooling_mode=["cls", "lasttoken"])
    assert (isorun(*command).code, added) == (0, [2, 2, 1])
    with library.Embedder(changed, backend="ort-cpu") as embedder:
        np.testing.assert_allclose(np.load(output), embedder.embed(LINES), atol=1e-6)


def test_other_settings_start_again(isorun: Callable[..., Any], model: Path, texts: Path, tmp_path: Path) -> None:
    output = tmp_path / "vectors.npy"
    with VectorsFile(output, (2, WIDTH), "another key") as part:
        part.add(np.ones((2, WIDTH), np.float32))
        for name in ("part", "progress"):
            path = tmp_path / f"vectors.npy.{name}"
            path.with_suffix(".kept").write_bytes(path.read_bytes())
            path.with_suffix(".kept").rename(tmp_path / f"{name}.kept")
    for name in ("part", "progress"):
        (tmp_path / f"{name}.kept").rename(tmp_path / f"vectors.npy.{name}")
    ran = isorun("embed", texts, "-o", output, "--model", model, "--backend", "ort-cpu", "--truncate-dim", "4")
    assert (ran.code, np.load(output).shape) == (0, (3, 4))
    assert "Starting again" in ran.err
    assert sorted(path.name for path in tmp_path.glob("vectors*")) == ["vectors.identity.json", "vectors.npy"]


def test_two_commands_do_not_write_one_file(
    isorun: Callable[..., Any], model: Path, texts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "vectors.npy"
    with VectorsFile(output, (0, WIDTH), "another command"):
        ran = isorun("embed", texts, "-o", output, "--model", model, "--backend", "ort-cpu")
        assert ran.code == 2
        assert f"Another command is writing {output}" in ran.err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with a name")
def test_keeps_what_is_no_file_of_its_own(isorun: Callable[..., Any], model: Path, texts: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.npy").symlink_to("target.npy")
    kept = texts.read_bytes()
    for output, reason in ((texts, "would be overwritten"), (tmp_path / "pipe", "is a device or a pipe")):
        ran = isorun("embed", texts, "-o", output, "--model", model, "--backend", "ort-cpu")
        assert (ran.code, reason in ran.err) == (2, True)
    assert texts.read_bytes() == kept
    ran = isorun("embed", texts, "-o", tmp_path / "link.npy", "--model", model, "--backend", "ort-cpu")
    assert (ran.code, (tmp_path / "link.npy").is_symlink()) == (0, True)
    assert np.load(tmp_path / "target.npy").shape == (3, WIDTH)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((3, WIDTH)), "are float64"),
        (np.full((3, WIDTH), np.nan, np.float32), "NaN"),
        (np.full((3, WIDTH), "a"), "array of numbers"),
        (np.zeros((3, 7), np.float32), "is not the record of"),
        (None, "not a file of vectors"),
    ],
)
def test_vectors_that_nothing_can_be_searched_with(
    isorun: Callable[..., Any], written: Path, tmp_path: Path, array: np.ndarray | None, reason: str
) -> None:
    output = Path(shutil.copytree(written, tmp_path / "vectors")) / "vectors.npy"
    if array is None:
        output.write_bytes(output.read_bytes()[:40])
    else:
        np.save(output, array)
    ran = isorun("vectors", "compare", output, output)
    assert (ran.code, reason in ran.err) == (2, True)
    output.unlink()
    assert "no file" in isorun("vectors", "compare", output, output).err


def test_no_record_of_earlier_vectors_stays(
    isorun: Callable[..., Any], model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("embed", texts, "-o", tmp_path / "v.npy", "--model", model, "--backend", "ort-cpu")
    assert isorun(*command).code == 0

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(embed, "write_atomically", interrupted)  # after the vectors are in their place
    assert isorun(*command, "--truncate-dim", "4").code == 130
    assert not (tmp_path / "v.identity.json").exists()
    ran = isorun("embed", texts, "-o", tmp_path / "v.vec", "--model", model, "--backend", "ort-cpu")
    assert (ran.code, "must end with .npy" in ran.err) == (2, True)


def test_an_empty_file_gives_no_vectors(isorun: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("")
    ran = isorun("embed", tmp_path / "texts.txt", "-o", tmp_path / "v.npy", "--model", model, "--backend", "ort-cpu")
    assert ran.code == 0, ran.err
    assert np.load(tmp_path / "v.npy").shape == (0, WIDTH)


def test_rejects_what_is_not_text(isorun: Callable[..., Any], tmp_path: Path, model: Path) -> None:
    (tmp_path / "texts.txt").write_bytes(b"\xff\xfe")
    ran = isorun("embed", tmp_path / "texts.txt", "-o", tmp_path / "v.npy", "--model", model)
    assert ran.code == 2
    assert "is not UTF-8 text" in ran.err
    ran = isorun("embed", os.devnull, "-o", tmp_path / "v.npy", "--model", model)
    assert (ran.code, "is a pipe or a device" in ran.err) == (2, True)
