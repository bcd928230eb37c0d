"""A matrix on several Ray nodes on this machine: one report, lost nodes and drivers, and nodes that do not fit."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import ray_hosts
import ray_nodes
from isorun_matrix.results import machines
from isorun_matrix.results.folder import RunFolder
from matrix_runs import Isorun, wait_for

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'isorun[ray]'"),
]
ROUNDS = 3
SPEC = f"""
models: {{tiny: {{path: tiny.onnx}}}}
shapes: [2x8]
reference: {{backend: fake}}
repetitions: 4
rounds: {ROUNDS}
repeats: 0
warmup: 0
masks: []
control: false
machines:
  zen: {{labels: {{machine: zen}}, cost: 0.4}}
  xeon: {{labels: {{machine: xeon}}}}
backends: [fake, {{name: fake, label: slow, options: {{seconds: 0.3}}}}]
"""


class Nodes:
    """A cluster in a process of its own, which obeys commands."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [*command],
            env={**environment, "RAY_health_check_period_ms": "500"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self._line()
        self.process = self._process.pid

    def _line(self) -> str:
        while line := self._process.stdout.readline().strip():
            if line == "done" or ":" in line.split()[0]:
                return line
        raise AssertionError("the cluster did not start")

    def tell(self, command: str) -> None:
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        self._line()

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[..., Nodes]]:
    """Start a cluster; a node is described as in :mod:`ray_nodes`."""
    started: list[Nodes] = []

    def start(**described: dict[str, Any]) -> Nodes:
        command = [sys.executable, ray_nodes.__file__, str(tmp_path / "nodes"), json.dumps(described)]
        started.append(Nodes(command, environment))
        return started[-1]

    yield start
    for nodes in started:
        nodes.close()


@pytest.fixture
def spec(tiny: Path, tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def measured(out: Path) -> Counter[str]:
    """The rounds of each cell on each machine."""
    counts: Counter[str] = Counter()
    for name, run in machines.read(out).runs.items():
        for cell in run.cells:
            counts[f"{name}/{cell.label}"] = 0 if cell.result is None else len(cell.result.rounds)
    return counts


WHOLE = {f"{machine}/{label}": ROUNDS for machine in ("zen", "xeon") for label in ("fake", "slow")}


def test_machines_are_one_report(start: Callable[..., Nodes], isorun: Isorun, spec: Path, tmp_path: Path) -> None:
    nodes, out = start(zen={}, xeon={}), tmp_path / "RUN"
    ran = isorun("run", spec, "--ray", nodes.address, "--out", out)
    assert ran.returncode == 0, ran.stderr
    assert measured(out) == WHOLE
    report = machines.read(out)
    assert list(report.runs) == ["zen", "xeon"]
    assert len({tuple(digests.values()) for digests in report.feeds.values()}) == 1
    for run in report.runs.values():  # what Ray gives to its workers does not reach what is measured
        assert (run.environment.nice, run.environment.variables) == (os.nice(0), {})
    merged = isorun("merge", out / "machines" / "zen", out / "machines" / "xeon", "--out", tmp_path / "merged")
    assert merged.stdout == ran.stdout
    assert "(" not in merged.stdout.partition("p50 ms")[2].partition("CPU ms")[0]  # nothing differs
    assert not list((tmp_path / "nodes").glob("*/state/isorun/matrix/*"))


def test_a_lost_node_and_a_lost_driver_lose_no_finished_cell(
    start: Callable[..., Nodes], isorun: Isorun, spec: Path, tmp_path: Path, command: list[str], environment: Any
) -> None:
    nodes, out = start(zen={}, xeon={}), tmp_path / "RUN"
    arguments = ["run", str(spec), "--ray", nodes.address, "--out", str(out)]
    driver = subprocess.Popen([*command, *arguments], env=environment, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(rounds(out, "zen")) >= 1, 90)
    nodes.tell("kill zen")
    _, errors = driver.communicate(timeout=120)
    assert driver.returncode == 1, errors
    assert "zen stopped: lost: " in errors
    assert {name: count for name, count in measured(out).items() if "xeon" in name} == {
        "xeon/fake": ROUNDS,
        "xeon/slow": ROUNDS,
    }
    kept = rounds(out, "zen")
    assert 1 <= len(kept) < 2 * ROUNDS

    nodes.tell("add zen")
    second = subprocess.Popen([*command, *arguments, "--resume"], env=environment, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(rounds(out, "zen")) > len(kept), 90)
    second.kill()
    second.wait()
    resumed = isorun(*arguments, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert all(count >= ROUNDS for count in measured(out).values())
    assert kept.items() <= rounds(out, "zen").items()
    assert len(set(rounds(out, "zen"))) == len(rounds(out, "zen"))


@pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], check=False).returncode != 0,
    reason="needs root and network namespaces",
)
def test_a_machine_cut_off_the_network_loses_no_finished_cell(
    isorun: Isorun, spec: Path, tmp_path: Path, command: list[str], environment: dict[str, str]
) -> None:
    soon = {"RAY_health_check_timeout_ms": "2000", "RAY_health_check_failure_threshold": "3"}  # not after 50 s
    variables, out = {**environment, **soon, "RAY_AUTH_MODE": "disabled"}, tmp_path / "RUN"
    script = [sys.executable, ray_hosts.__file__, str(tmp_path / "nodes"), "zen", "xeon"]
    hosts = Nodes(["unshare", "--net", *script], variables)
    try:
        arguments = ["run", str(spec), "--ray", hosts.address, "--out", str(out)]
        run = ["nsenter", f"--target={hosts.process}", "--net", *command, *arguments]
        with subprocess.Popen(run, env=variables, stderr=subprocess.PIPE, text=True) as driver:
            wait_for(lambda: len(rounds(out, "zen")) >= 1, 90)
            hosts.tell("cut zen")
            _, errors = driver.communicate(timeout=120)
        assert driver.returncode == 1, errors
        assert "zen stopped: lost: " in errors
        kept = rounds(out, "zen")
        assert len(kept) < 2 * ROUNDS
        hosts.tell("join zen")  # Ray ends on a node that it has given up
        hosts.tell("add zen")
        resumed = subprocess.run([*run, "--resume"], env=variables, capture_output=True, text=True, check=False)
        assert resumed.returncode == 0, resumed.stderr
        assert kept.items() <= rounds(out, "zen").items()
        assert {*measured(out)} == {*WHOLE}
        assert all(count in (ROUNDS, ROUNDS + 1) for count in measured(out).values())  # cells of a round run together
    finally:
        hosts.close()


def rounds(out: Path, machine: str) -> dict[str, str]:
    """The digests of the results of all rounds of a machine, by their folder."""
    return {
        place: digest for place, digest in RunFolder(out / "machines" / machine).jobs().items() if "/round-" in place
    }


def test_a_second_run_is_refused_by_name(
    start: Callable[..., Nodes], isorun: Isorun, spec: Path, tmp_path: Path, command: list[str], environment: Any
) -> None:
    spec.write_text(SPEC.replace("0.3", "2"), encoding="utf-8")
    nodes = start(zen={}, xeon={})
    arguments = [*command, "run", str(spec), "--ray", nodes.address, "--out", str(tmp_path / "first")]
    with subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL) as first:
        wait_for(lambda: (tmp_path / "first" / "machines" / "zen").exists(), 90)
        second = isorun("run", spec, "--ray", nodes.address, "--out", tmp_path / "second")
        first.kill()
    assert second.returncode == 2
    assert "machine zen (node " in second.stderr
    assert "another run uses it" in second.stderr


def test_nodes_that_do_not_fit_are_named_at_once(
    start: Callable[..., Nodes], isorun: Isorun, spec: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    old = tmp_path / "old" / "isorun-0.0.1.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: isorun\nVersion: 0.0.1\n")
    path = {"PYTHONPATH": os.pathsep.join([str(old.parent), environment["PYTHONPATH"]])}
    nodes = start(zen={"env": path}, xeon={}, bare={"resources": {}})
    began = time.monotonic()
    refused = isorun("run", spec, "--ray", nodes.address, "--out", tmp_path / "RUN")
    assert time.monotonic() - began < 30
    assert refused.returncode == 2
    assert "machine zen (node " in refused.stderr
    assert "it has isorun 0.0.1, and the driver has" in refused.stderr
    assert "pip install 'isorun[ray]==" in refused.stderr

    spec.write_text(
        SPEC.replace("machine: zen", "machine: zne").replace("machine: xeon", "machine: bare"), encoding="utf-8"
    )
    began = time.monotonic()
    refused = isorun("run", spec, "--ray", nodes.address, "--out", tmp_path / "RUN")
    assert time.monotonic() - began < 30
    assert refused.returncode == 2
    assert "machine zen: no node has the labels" in refused.stderr
    assert "did you mean 'machine=zen'" in refused.stderr
    assert "machine xeon: " in refused.stderr
    assert """ray start --resources='{"isorun": 1}'""" in refused.stderr
