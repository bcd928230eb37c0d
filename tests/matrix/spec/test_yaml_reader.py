"""What YAML allows and a spec does not: an error with the file's name, in bounded time and of bounded length."""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isorun.errors import SpecError
from isorun_matrix.spec import reader

SPEC = """\
models: {m: {preset: bert-3l}}
backends: [{name: ort-cpu, options: {}}]
shapes: [8x128]
"""
MATRIX = Path(__file__).parents[3] / "matrix"
TOKENS = (
    *(b"!!bool x", b"2026-99-99", b"9" * 5000, b"0x" + b"f" * 5000, b"[" * 500, b"&x [*x]", b"*nope", b"<<: *a\n"),
    *(b"~nouser/x", b'"\\0"', b'"\\ud800"', b'"\\UFFFFFFFF"', b"\x00", b"\xff\xfe", b"? [a]\n: b\n", b"1: 2\n"),
    *(b"!!set {a, b}", b"!!binary aGk=", b".inf", b"1.0e+999", b"!!int ''", b"!!seq x", b"=", b"<<", b"---\n", b"'"),
    *(b"%YAML 1." + b"9" * 5000 + b"\n---\n", b"a" * 5000, b"../../../x", b"! x", b"190:20:30", b"|", b"]", b": "),
)


def refused(folder: Path, content: str | bytes) -> str:
    """The message about a file that is not a spec."""
    path = folder / "spec.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    started = time.process_time()
    with pytest.raises(SpecError) as caught:
        reader.load(path)
    message = str(caught.value)
    message.encode()
    assert time.process_time() - started < 10
    assert str(path) in message
    assert len(message.replace(str(path), "")) < 25_000
    return message


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("2026-99-99", "YAML reads '2026-99-99' as a date"),
        ("2026-01-01", "as a date"),
        ("!!bool x", "'x' is not a valid bool"),
        ('{"\\ud800": 1}', "a character that is not text"),
        ("!!int ''", "'' is not a valid int"),
        ("!!float x", "'x' is not a valid float"),
        ("9" * 5000, "is not a valid int"),
        ("0x" + "f" * 5000, "64 bits"),
        (str(1 << 64), "64 bits"),
        ("010", "reads '010' as 8, YAML 1.2 does not. Write a decimal number"),
        ("0b11", "as 3, YAML 1.2 does not"),
        ("1_0", "as 10, YAML 1.2 does not"),
        ("1:30", "as 90, YAML 1.2 does not"),
        ("1:30.5", "as 90.5, YAML 1.2 does not"),
        *((word, "Write true or false, or put it in quotes") for word in ("yes", "No", "ON", "off")),
        (".inf", "finite number, got inf"),
        ("1.0e+999", "finite number, got inf"),
        ("!!set {a, b}", "'!!set'"),
        ("!!binary aGk=", "'!!binary'"),
        ("!!python/object:os.system x", "YAML reads"),
        ('"a\\0b"', "a character that is not text"),
        ('"\\ud800"', "a character that is not text"),
        ("{1: a}", "a key must be a string, got 1"),
        ("{2026-01-01: a}", "a key must be a string, got '2026-01-01'"),
        ("{~: a}", "a key must be a string, got None"),
        ("&x [*x]", "at most 20,000 values, got more with aliases expanded"),
        ("=", "'!!value'"),
    ],
)
@pytest.mark.parametrize("place", ["known", "unknown", "of a backend"])
def test_rejects_values(tmp_path: Path, value: str, problem: str, place: str) -> None:
    text = f"{SPEC}{'seed' if place == 'known' else 'more'}: {value}\n"
    if place == "of a backend":
        text = SPEC.replace("options: {}", f"options: {{x: {value}}}")
    message = refused(tmp_path, text)
    assert problem in message
    assert f"line {1 if 'aliases' in problem else 2 if place == 'of a backend' else 4}: " in message
    assert len(message.replace(str(tmp_path), "")) < 1000


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (SPEC + "more: " + "[" * 100_000, "values may be nested at most 50 deep, got more. "),
        ("".join(f"{' ' * depth}a:\n" for depth in range(60)), "values may be nested at most 50 deep, got more. "),
        (SPEC + "more: [" + "a," * 100_000 + "]", "line 4: a spec may have at most 20,000 values, got more. "),
        ("a" * (1 << 20), "may have at most 524,288 bytes, got 1,048,576"),
        ('a: "\\UFFFFFFFF"', "line 1: not YAML"),
        ("%YAML 1." + "9" * 5000 + "\n---\na: b\n", "not YAML"),
        ("\ud800".encode(errors="surrogatepass"), "Save it as UTF-8"),
        ("models: {}".encode("utf-16"), "Save it as UTF-8"),
        (SPEC.replace("bert-3l", "x" * 100_000), "unknown preset"),
        (SPEC.replace("8x128", f"{'9' * 5000}x1"), "BATCHxSEQUENCE"),
        (SPEC.replace("8x128", "0x8"), "BATCHxSEQUENCE"),
        (SPEC.replace("preset: bert-3l", "path: ~nouser/x"), "file not found"),
        (SPEC.replace("preset: bert-3l", "checkpoint: ~nouser/x"), "folder not found"),
        (SPEC.replace("preset: bert-3l", f"path: {'x' * 5000}"), "File name too long"),
        (SPEC + "environments: {e: {install: [~nouser/x]}}", "does not exist"),
        (SPEC + f"environments: {{e: {{install: [./{'x' * 5000}]}}}}", "File name too long"),
        (SPEC.replace("options: {}", "precisions: [../../x]"), "backends[0].precisions[0]: "),
        (SPEC.replace("{m:", f"{{{'m' * 300}:"), "at most 100 characters"),
        (SPEC + "time_limit: 1.0e+300", "less than or equal to"),
        ("".join(f"k{number}: 1\n" for number in range(5000)), "and 4972 more"),
    ],
)
def test_rejects_files(tmp_path: Path, content: str | bytes, problem: str) -> None:
    message = refused(tmp_path, content)
    assert problem in message
    assert ("at most" in problem) <= ("not YAML" not in message)


@pytest.mark.parametrize(("value", "number"), [("1e-1", 0.1), ("1.5e1", 15.0), (".5E+1", 5.0), ("1.5e-1", 0.15)])
def test_reads_the_numbers_of_yaml_1_2(tmp_path: Path, value: str, number: float) -> None:
    (tmp_path / "spec.yaml").write_text(f"{SPEC}seconds: {value}\n")
    assert reader.load(tmp_path / "spec.yaml").seconds == number


def test_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "spec.yaml")
    with pytest.raises(SpecError, match="must be a regular file"):
        reader.load(tmp_path / "spec.yaml")


def test_suggests_a_spec_for_a_missing_one(tmp_path: Path) -> None:
    for name in ("matrix.yml", "matrx.py", "matrx.onnx"):
        (tmp_path / name).touch()
    with pytest.raises(SpecError, match=r"matrx\.yaml; did you mean .*/matrix\.yml\?"):
        reader.load(tmp_path / "matrx.yaml")


@pytest.mark.parametrize("start", ["[x, x]", "{x: 1}"])
@pytest.mark.parametrize("step", ["[{}]", "{{<<: [{}]}}"])
@pytest.mark.parametrize("count", [1, 9])
def test_rejects_aliases_that_multiply(tmp_path: Path, start: str, step: str, count: int) -> None:
    lines = [f"a0: &a0 {start}"]
    lines += [f"a{n}: &a{n} " + step.format(", ".join([f"*a{n - 1}"] * count)) for n in range(1, 60)]
    message = refused(tmp_path, "\n".join(lines))
    assert "aliases expanded" in message


def test_a_mistake_in_an_anchor_is_reported_wherever_it_is_used(tmp_path: Path) -> None:
    message = refused(
        tmp_path,
        "x-shapes: &shapes [{batch: 1, sequnce: 8}]\n"
        "models: {a: {preset: bert-3l, shapes: *shapes}}\nshapes: *shapes\nbackends: [ort-cpu]\n",
    )
    assert message.count("did you mean 'sequence'?") == 2


def test_an_unknown_key_may_begin_like_a_merge_key(tmp_path: Path) -> None:
    assert "unknown key" in refused(tmp_path, "<<:: 1\nmodels: {a: {preset: bert-3l}}\nbackends: [ort-cpu]\n")


def mutations(seed: int) -> Iterator[bytes]:
    """Shipped specs with bytes flipped, removed and moved, and odd tokens put in."""
    source = random.Random(seed)
    for path in sorted(MATRIX.glob("*.yaml")):
        content = path.read_bytes()
        for _ in range(10):
            place = source.randrange(len(content))
            token = source.choice((*TOKENS, bytes([content[place] ^ 1 << source.randrange(8)]), content[-place:], b""))
            yield content[:place] + token + content[place + source.choice((0, 1, 8)) :]


def test_a_damaged_spec_is_valid_or_rejected(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    rejected = 0
    for content in mutations(0):
        path.write_bytes(content)
        try:
            reader.load(path)
        except SpecError:
            rejected += 1
    assert rejected
