from pathlib import Path

from matrix_runs import SLOW, Isorun, spec_file


def test_compares_two_files_of_a_model_in_common_rounds(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    spec = spec_file(tmp_path, SLOW.replace("rounds: 1", "rounds: 3") + "  - {name: fake, options: {seconds: 0.01}}\n")
    variant = tmp_path / "other.onnx"
    variant.write_bytes(tiny.read_bytes().replace(b"tiny", b"tini"))
    out = tmp_path / "out"
    done = isorun("ab", spec, "--model", f"tiny={variant}", "--out", out)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("fake/fp32")]
    busy = line.endswith("too few rounds")  # others used the processor during one of the three
    assert done.returncode == int(busy), done.stderr
    assert busy or line.split()[-2] == "3"  # common rounds of two models
    assert busy or line.split()[-1] in ("tied", "ambiguous")
    again = isorun("ab", spec, "--model", f"tiny={variant}", "--out", out, "--resume", "--fail-above", 100)
    assert (again.returncode, again.stdout) == (done.returncode, done.stdout)


def test_needs_a_difference(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    spec = spec_file(tmp_path, SLOW + "  - fake\n")
    done = isorun("ab", spec, refused=True)
    assert done.returncode == 2
    assert "--environment" in done.stderr
    assert isorun("ab", spec, "--model", f"nothing={tiny}", refused=True).returncode == 2
    absent = isorun("ab", spec, "--model", f"tiny={tmp_path / 'absent.onnx'}", refused=True)
    assert (absent.returncode, "file not found" in absent.stderr, "Traceback" in absent.stderr) == (2, True, False)
    assert isorun("ab", spec, "--environment", "nowhere", refused=True).returncode in (2, 3)


def test_refuses_a_limit_where_one_side_alone_runs_in_an_environment(
    isorun: Isorun, tiny: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    spec = spec_file(tmp_path, "environments: {next: {}}\n" + SLOW + "  - fake\n")
    done = isorun("ab", spec, "--environment", "next", "--fail-above", 5, "--out", out, refused=True)
    assert (done.returncode, "--fail-above needs" in " ".join(done.stderr.split())) == (2, True)
    assert not out.exists()
