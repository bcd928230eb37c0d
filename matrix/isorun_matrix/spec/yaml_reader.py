"""Read hand-written YAML: plain data of a bounded size, or one error with the line of every problem.

What YAML allows and a spec does not need is rejected before the data is built: dates, sets and other tags, keys that
are not strings, duplicate keys, aliases that multiply, numbers that no setting can hold.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from isorun.errors import SpecError, near_file
from isorun_matrix.text import cut

Place = tuple[int | str, ...]
Problem = tuple[Place, str]

_BYTES = 1 << 19
_VALUES = 20_000  # in a file, aliases counted where they are used
_DEPTH = 50
_TOO_MANY = f"a spec may have at most {_VALUES:,} values, got more"
_TOO_DEEP = f"values may be nested at most {_DEPTH} deep, got more"
_INTEGER = 1 << 63
_PROBLEMS = 30  # shown for one file
_SHOWN = 600  # characters shown of one problem
_ODD_NUMBER = re.compile(r"[-+]?0b?[0-9]+|.*[_:].*")
_PREFIX = "tag:yaml.org,2002:"
_MERGE = f"{_PREFIX}merge"
_SCALARS = {f"{_PREFIX}{name}" for name in ("null", "bool", "int", "float", "str")}
_TAGS = {yaml.ScalarNode: _SCALARS, yaml.SequenceNode: {f"{_PREFIX}seq"}, yaml.MappingNode: {f"{_PREFIX}map"}}


class _Excess(Exception):
    """Valid YAML with more data than a spec may have."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.line = line


class _Loader(yaml.SafeLoader):
    """A loader that stops at data that would take minutes or all memory, and that knows the numbers of YAML 1.2."""

    _values = 0
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._values += 1
        self._depth += 1
        if problem := _excess(self._values, self._depth):
            raise _Excess(problem, self.line + 1)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


# YAML 1.1 reads 1e-3 and 1.5e3 as texts: its numbers have a point and a sign.
_Loader.add_implicit_resolver(
    f"{_PREFIX}float", re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"), [*"-+.0123456789"]
)


def read(path: Path) -> tuple[yaml.MappingNode, dict[str, Any], list[Problem]]:
    """The mapping in a YAML file, as nodes that know their lines and as data, and what no spec can have. Raises
    ``SpecError`` if the file cannot be read, is not YAML, or contains data that no spec can have."""
    loader = _loader(path)
    try:
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise SpecError(f"{path} has no keys. A spec needs at least models, backends and shapes.")
        _check_extent(root)
        if problems := list(_problems(root, (), set(), loader)):
            try:
                data = loader.construct_document(root)
            except (yaml.YAMLError, ValueError, OverflowError, LookupError):
                raise error(path, root, problems) from None
            return root, {key: value for key, value in data.items() if isinstance(key, str)}, problems
        return root, loader.construct_document(root), []
    except _Excess as cause:
        raise SpecError(f"{path}, line {cause.line}: {cause}. Split the spec, or shorten its lists.") from None
    except yaml.YAMLError as cause:
        mark = getattr(cause, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        raise SpecError(
            f"{path}{line}: not YAML: {cut(getattr(cause, 'problem', None) or str(cause), _SHOWN)}"
        ) from cause
    except (ValueError, OverflowError) as cause:  # invalid numbers in escapes and versions
        raise SpecError(f"{path}, line {loader.line + 1}: not YAML: {cut(str(cause), _SHOWN)}") from cause
    finally:
        loader.dispose()


def error(path: Path, root: yaml.Node, problems: Sequence[Problem]) -> SpecError:
    """The error about all problems of a file, one a line, in the file's order."""
    problems = sorted(problems, key=lambda problem: _line(root, problem[0]))
    lines = [
        f"line {_line(root, place)}: {cut(f'{_dotted(place)}{text}', _SHOWN)}" for place, text in problems[:_PROBLEMS]
    ]
    if len(problems) == 1:
        return SpecError(f"{path}, {lines[0]}")
    if len(problems) > _PROBLEMS:
        lines.append(f"and {len(problems) - _PROBLEMS} more")
    return SpecError("\n  ".join([f"{path} has {len(problems)} errors:", *lines]))


def _loader(path: Path) -> _Loader:
    if path.exists() and not path.is_file():
        raise SpecError(f"Cannot read {path}: a spec must be a regular file")  # a pipe would never end
    try:
        with path.open("rb") as file:
            content = file.read(_BYTES + 1)
        text = content.decode("utf-8")
    except FileNotFoundError:
        raise SpecError(f"Spec not found: {path}{near_file(path, suffixes=('.yaml', '.yml'))}") from None
    except UnicodeDecodeError as cause:
        if len(content) <= _BYTES:
            raise SpecError(f"Cannot read {path}: {cause}. Save it as UTF-8.") from cause
    except (OSError, ValueError) as cause:
        raise SpecError(f"Cannot read {path}: {cause}") from cause
    if len(content) > _BYTES:
        size = path.stat().st_size
        raise SpecError(f"{path} may have at most {_BYTES:,} bytes, got {size:,}. Move texts to a file of their own.")
    try:
        return _Loader(text)
    except yaml.reader.ReaderError as cause:
        raise SpecError(f"{path} is not text: {cause.reason}, at character {cause.position}") from cause


def _children(node: yaml.Node) -> Iterator[tuple[int | str, yaml.Node]]:
    """The nodes in a node, with their index or key."""
    if isinstance(node, yaml.SequenceNode):
        yield from enumerate(node.value)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield str(key.value) if isinstance(key, yaml.ScalarNode) else "?", value


def _extent(node: yaml.Node, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """How many values a node has with aliases expanded, and how deep they are nested."""
    if id(node) not in known:
        known[id(node)] = _VALUES + 1, 1  # until it is counted: an alias of itself is endless
        values, depths = zip((0, 0), *(_extent(value, known) for _, value in _children(node)), strict=True)
        known[id(node)] = 1 + sum(values), 1 + max(depths)
    return known[id(node)]


def _check_extent(root: yaml.Node) -> None:
    if problem := _excess(*_extent(root, {})):
        raise _Excess(f"{problem} with aliases expanded", root.start_mark.line + 1)


def _excess(values: int, depth: int) -> str | None:
    return _TOO_DEEP if depth > _DEPTH else _TOO_MANY if values > _VALUES else None


def _problems(node: yaml.Node, place: Place, seen: set[int], loader: yaml.SafeLoader) -> Iterator[Problem]:
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if node.tag not in _TAGS[type(node)]:
        tag = node.tag.replace(_PREFIX, "!!")
        what = "a date" if tag == "!!timestamp" else reprlib.repr(tag)
        yield place, f"must be plain data, but YAML reads {_shown(node)} as {what}. Put it in quotes."
    elif isinstance(node, yaml.ScalarNode):
        yield from ((place, problem) for problem in _scalar_problems(node, loader))
    elif isinstance(node, yaml.MappingNode):
        yield from _key_problems(node, place, loader)
    for part, value in _children(node):
        yield from _problems(value, (*place, part), seen, loader)


def _key_problems(node: yaml.MappingNode, place: Place, loader: yaml.SafeLoader) -> Iterator[Problem]:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):  # the constructor rejects it, with its line
            continue
        if key.value in lines:
            yield (*place, key.value), f"duplicate key, first used on line {lines[key.value]}"
        lines.setdefault(key.value, key.start_mark.line + 1)
        if key.tag == _MERGE:
            continue
        problems = list(_scalar_problems(key, loader)) if key.tag in _SCALARS else []
        if key.tag != f"{_PREFIX}str":
            value = reprlib.repr(loader.construct_object(key)) if key.tag in _SCALARS and not problems else _shown(key)
            problems = [f"a key must be a string, got {value}. Put it in quotes."]
        yield from (((*place, key.value), problem) for problem in problems)


def _scalar_problems(node: yaml.ScalarNode, loader: yaml.SafeLoader) -> Iterator[str]:
    try:
        value = loader.construct_object(node)
    except (ValueError, LookupError, ArithmeticError):  # `!!bool x`, an integer of thousands of digits
        yield f"{_shown(node)} is not a valid {node.tag.removeprefix(_PREFIX)}"
        return
    if node.style is None and _of_yaml_1_1(node.value, value):
        instead = "true or false" if isinstance(value, bool) else "a decimal number"
        yield f"YAML 1.1 reads {_shown(node)} as {value!r}, YAML 1.2 does not. Write {instead}, or put it in quotes."
    elif isinstance(value, int) and not -_INTEGER <= value < _INTEGER:
        yield f"must be an integer of at most 64 bits, got {_shown(node)}"
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"must be a finite number, got {value}"
    elif isinstance(value, str) and ("\0" in value or value != value.encode(errors="replace").decode()):
        yield f"{reprlib.repr(value)} contains a character that is not text"


def _of_yaml_1_1(text: str, value: Any) -> bool:
    """Whether only YAML 1.1 reads a text as this value: `yes`, `010` (8), `0b11`, `1:30` (90), `1_0`."""
    if isinstance(value, bool):
        return text.lower() not in ("true", "false")
    return isinstance(value, int | float) and _ODD_NUMBER.fullmatch(text) is not None


def _shown(node: yaml.Node) -> str:
    return reprlib.repr(node.value) if isinstance(node, yaml.ScalarNode) else "the value"


def _dotted(place: Place) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place if part != "[key]")
    text = text.removeprefix(".")
    return f"{text if len(text) < _SHOWN // 3 else reprlib.repr(text)}: " if text else ""


def _line(node: yaml.Node, place: Place) -> int:
    """The line of the key or item at a place, or of the nearest parent in the file."""
    line: int = node.start_mark.line
    for part in place:
        entry = None
        if isinstance(node, yaml.MappingNode):
            # of duplicate keys the last, which is the wrong one
            entry = next(((key, value) for key, value in reversed(node.value) if key.value == str(part)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            entry = (node.value[part], node.value[part])
        if entry is None:
            break
        line, node = entry[0].start_mark.line, entry[1]
    return line + 1
