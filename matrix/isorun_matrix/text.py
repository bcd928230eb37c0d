"""Text from files and runtimes, as it can be shown: printable, and of a bounded length."""

from __future__ import annotations


def printable(text: str) -> str:
    """A text whose control characters and lone surrogates are written as escapes; lines stay lines."""
    return "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text)


def cut(text: str, most: int) -> str:
    """A printable text of about ``most`` characters: without its middle, since its end often says what to do."""
    half = most // 2
    return printable(text if len(text) <= most else f"{text[:half]} ... {text[-half:]}")
