"""Make text from files and runtimes safe to show: printable, of bounded length."""

from __future__ import annotations


def encodable(text: str) -> str:
    """A text whose lone surrogates are replaced: a path that is not UTF-8 has them, and UTF-8 cannot encode them."""
    return text.encode(errors="replace").decode()


def printable(text: str) -> str:
    """A text with control characters and lone surrogates escaped, except line breaks."""
    return "".join(
        character if character.isprintable() or character == "\n" else repr(character)[1:-1] for character in text
    )


def cut(text: str, most: int) -> str:
    """A printable text of about ``most`` characters. The middle is cut, since the end often has the remedy."""
    half = most // 2
    return printable(text if len(text) <= most else f"{text[:half]} ... {text[-half:]}")
