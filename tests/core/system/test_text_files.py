from pathlib import Path

import pytest

from isorun.errors import InvalidArgument
from isorun.system import text_files


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\r\n\r\nb", ["a", "", "b"]),
        ("\ufeffa\nb", ["a", "b"]),  # Windows' editors
        ("one\u2028text\x0c, \x85 too\n\ufeff", ["one\u2028text\x0c, \x85 too", "\ufeff"]),
        ("", []),
    ],
)
def test_lines_end_where_editors_end_them(tmp_path: Path, content: str, lines: list[str]) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes(content.encode())
    assert list(text_files.lines(path)) == lines


def test_texts_are_not_blank(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("a\n \n\nb ", encoding="utf-8")
    assert text_files.texts(path) == ["a", "b "]
    for content, problem in ((b" \n", "has no text"), ("a".encode("utf-16"), "not UTF-8")):
        path.write_bytes(content)
        with pytest.raises(InvalidArgument, match=problem):
            text_files.texts(path)
