import shutil
import threading
from pathlib import Path

from isorun.system.cache import size_of


def test_the_size_of_a_file_and_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a").write_bytes(b"123")
    (tmp_path / "b").write_bytes(b"45")
    (tmp_path / "broken").symlink_to("missing")
    link = (tmp_path / "broken").lstat().st_size
    assert (size_of(tmp_path / "inner" / "a"), size_of(tmp_path), size_of(tmp_path / "none")) == (3, 5 + link, 0)


def test_the_size_of_a_folder_in_which_another_thread_works(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(b"12345")
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            (tmp_path / "passing" / "deep").mkdir(parents=True)
            (tmp_path / "passing" / "deep" / "empty").touch()
            shutil.rmtree(tmp_path / "passing")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert {size_of(tmp_path) for _ in range(3000)} == {5}
    finally:
        done.set()
        thread.join()
