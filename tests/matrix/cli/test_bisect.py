import json
import signal
import subprocess
import time
from pathlib import Path

import onnx
import onnx.parser
import pytest

import releases
from matrix_runs import Isorun, wait_for
from releases import PACKAGE

FAKES = Path(__file__).parents[1] / "fakes"
WRONG = {"do": "left"}  # wrong with padding on the left


@pytest.fixture
def index(environment: dict[str, str], tmp_path: Path) -> Path:
    """A folder for wheels, which is the package index of the commands."""
    folder = tmp_path / "index"
    folder.mkdir()
    return folder


def publish(environment: dict[str, str], index: Path, **behaviours: dict[str, object]) -> None:
    """Releases by names such as ``v1_0``."""
    named = {name[1:].replace("_", "."): behaviour for name, behaviour in behaviours.items()}
    environment |= releases.publish(index, named, FAKES)


def arguments(tiny: Path, out: Path, *more: str) -> list[str]:
    ends = ["--backend", "paced", "--package", PACKAGE, "--good", "1", "--bad", "1.5", "--shape", "2x4"]
    return ["bisect", str(tiny), *ends, "--out", str(out), *more]


def test_a_shape_that_the_model_does_not_accept_is_no_fault_of_a_release(
    isorun: Isorun, tmp_path: Path, index: Path
) -> None:
    fixed = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> fixed (float[2, 3] x) => (float[2, 3] y) {y = Neg(x)}'
    )
    onnx.save(fixed, tmp_path / "fixed.onnx")
    ends = ("--backend", "ort-cpu", "--good", "1.25.0", "--bad", "1.26.0")
    done = isorun("bisect", tmp_path / "fixed.onnx", *ends, "--out", tmp_path / "out")
    assert (done.returncode, "--shape" in done.stderr) == (2, True)


@pytest.mark.long
def test_names_the_release_that_differs_and_skips_broken_ones(
    isorun: Isorun, environment: dict[str, str], index: Path, tiny: Path, tmp_path: Path
) -> None:
    unusable: dict[str, object] = {"do": "unsupported"}
    publish(environment, index, v1_0={}, v1_1={}, v1_2=unusable, v1_3={}, v1_4=WRONG, v1_5=WRONG, v1_6={})
    out = tmp_path / "out"
    done = isorun(*arguments(tiny, out, "--differs"))
    assert done.returncode == 0, done.stderr
    assert f"The first bad release is {PACKAGE} 1.4." in done.stdout
    assert "fake lacks Gather" in done.stdout
    assert "mask: left" in done.stdout
    kept = json.loads((out / "bisect.json").read_text(encoding="utf-8"))
    assert kept["found"] == {"last_good": "1.3", "first_bad": "1.4", "between": []}
    assert {step["release"]: step["verdict"] for step in kept["steps"]} == {
        "1.5": "bad",
        "1.2": "skipped",
        "1.3": "good",
        "1.4": "bad",
    }

    assert isorun(*arguments(tiny, out, "--differs")).returncode == 2  # without --resume
    assert isorun(*arguments(tiny, out, "--memory", "5%", "--resume")).returncode == 2
    kept["steps"] = kept["steps"][:2]  # one of them was skipped
    (out / "bisect.json").write_text(json.dumps(kept))
    again = isorun(*arguments(tiny, out, "--differs", "--resume", "--json"))
    assert "1.5 is bad" in again.stderr
    assert "1.2 is skipped" in again.stderr
    assert json.loads(again.stdout)["found"] == kept["found"]
    tiny.write_bytes(tiny.read_bytes().replace(b"tiny", b"tini"))
    changed = isorun(*arguments(tiny, out, "--differs", "--resume"))
    assert (changed.returncode, "model" in changed.stderr) == (2, True)


def test_equal_ends_have_no_verdict(
    isorun: Isorun, environment: dict[str, str], index: Path, tiny: Path, tmp_path: Path
) -> None:
    publish(environment, index, v1_0={}, v1_1={}, v1_5={})
    done = isorun(*arguments(tiny, tmp_path / "out", "--differs"))
    assert done.returncode == 1
    assert "No verdict" in done.stdout
    assert "1.1" not in done.stderr  # not even installed


def test_the_good_release_must_run(
    isorun: Isorun, environment: dict[str, str], index: Path, tiny: Path, tmp_path: Path
) -> None:
    publish(environment, index, v1_0={"do": "unsupported"}, v1_5={})
    assert isorun(*arguments(tiny, tmp_path / "out", "--differs")).returncode == 3
    swapped = [*arguments(tiny, tmp_path / "other"), "--good", "1.5", "--bad", "1.0"]
    assert "must be older" in isorun(*swapped).stderr
    absent = isorun(*arguments(tiny, tmp_path / "other"), "--bad", "3")
    assert (absent.returncode, "has no release '3'" in absent.stderr) == (2, True)


def test_ctrl_c_prints_the_command_to_resume(
    isorun: Isorun, command: list[str], environment: dict[str, str], index: Path, tiny: Path, tmp_path: Path
) -> None:
    publish(environment, index, v1_0={"seconds": 0.3}, v1_5={"seconds": 60})
    out = tmp_path / "out"
    words = arguments(tiny, out, "--differs", "--max-rel", "0.1")
    with subprocess.Popen([*command, *words], env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: (index / "environments" / f"{PACKAGE}-1.5" / "environment.json").exists())
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    shared = f"--good 1 --bad 1.5 --differs --max-rel 0.1 --package {PACKAGE} --shape 2x4 --out {out} --resume"
    assert f"isorun matrix bisect {tiny} --backend paced {shared}\n" in stderr
    assert json.loads((out / "bisect.json").read_text(encoding="utf-8"))["steps"] == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "more",
    [
        *("--resume", "--slower=5% --differs", "--max-rel=1e-3", "--memory=many", "--shape=wide", "--precision=fp1"),
        *("--differs --rounds=12", "--differs --reference=openvino", "--precision=bf16", "--option=foo=1"),
        *("--memory=1%", "--slower=-5%"),
    ],
)
def test_wrong_usage(isorun: Isorun, tiny: Path, more: str) -> None:
    words = ["bisect", str(tiny), "--backend", "ort-cpu", "--good", "1", "--bad", "2"]
    assert isorun(*words, *more.split(), refused=True).returncode == 2


@pytest.mark.long  # two minutes each
@pytest.mark.parametrize(("option", "worse"), [("--slower=20%", {"seconds": 0.02}), ("--memory=20%", {"mib": 400})])
def test_names_the_release_that_takes_more(
    isorun: Isorun,
    environment: dict[str, str],
    index: Path,
    tiny: Path,
    tmp_path: Path,
    option: str,
    worse: dict[str, object],
) -> None:
    base: dict[str, object] = {"seconds": 0.01}
    publish(environment, index, v1_0=base, v1_1=base, v1_2=base | worse, v1_5=base | worse)
    done = isorun(*arguments(tiny, tmp_path / "out", option, "--reference", "fake", "--rounds", "3"))
    assert done.returncode == 0, done.stderr
    assert f"The first bad release is {PACKAGE} 1.2." in done.stdout
    same = ["--good", "1.0", "--bad", "1.1"]
    done = isorun(*arguments(tiny, tmp_path / "same", option, "--reference", "fake", "--rounds", "3"), *same)
    assert (done.returncode, "No verdict" in done.stdout) == (1, True), done.stderr


@pytest.mark.long  # installs five releases of ONNX Runtime
def test_names_the_onnx_runtime_that_changed_outputs(isorun: Isorun, bert: Path, tmp_path: Path) -> None:
    """1.27.0 changed what the CPU's attention computes, within the tolerance."""
    out = tmp_path / "out"
    words = ["bisect", str(bert), "--backend", "ort-cpu", "--good", "1.26", "--bad", "1.28", "--shape", "4x32"]
    done = isorun(*words, "--differs", "--max-rel", "1e-8", "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["found"] == {"last_good": "1.26.0", "first_bad": "1.27.0", "between": []}
    assert "differs first at layer 0" in "".join(json.loads(done.stdout)["causes"])


NORMS = """
<ir_version: 10, opset_import: ["" : 17]>
norms (float[batch, 1024] x, float[1024] scale) => (float[batch, 1024] y)
{
    a = Tanh (x)
    b = LayerNormalization (a, scale)
    y = LayerNormalization (b, scale)
}
"""


@pytest.mark.long  # installs three releases of ONNX Runtime and measures for a minute
def test_names_the_onnx_runtime_whose_normalization_takes_longer(isorun: Isorun, tmp_path: Path) -> None:
    """64 x 1024: 48 microseconds in 1.26.0, 300 in 1.27.0 (AVX-512)."""
    model = tmp_path / "norms.onnx"
    onnx.save(onnx.parser.parse_model(NORMS), model)
    words = ["bisect", str(model), "--backend", "ort-cpu", "--good", "1.26", "--bad", "1.27", "--shape", "256"]
    done = isorun(
        *words, "--slower", "20%", "--rounds", "3", "--threads", "1", "--out", str(tmp_path / "out"), "--json"
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["found"]["first_bad"] == "1.27.0"
    assert document["causes"][1].startswith("LayerNormalization: ")
