"""Run a spec on the machines of a Ray cluster, each of which runs ``isorun matrix run`` by itself.

The driver prepares models and references once and sends them to the nodes. Results come back when a process has ended,
so that a lost node or driver loses no more than the processes that ran.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from isorun.errors import SpecError, did_you_mean
from isorun.models.source import files_of
from isorun.system.cache import sha256
from isorun_matrix.execution import host_lock
from isorun_matrix.execution.cluster import preflight
from isorun_matrix.execution.cluster.node import Files, Node
from isorun_matrix.execution.plan import Choice
from isorun_matrix.execution.preparation import Preparation
from isorun_matrix.execution.progress import Lines, Machines
from isorun_matrix.jobs import PreparedModel
from isorun_matrix.results import machines as results
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.layout import MACHINES, RUN
from isorun_matrix.results.machines import MachineRuns
from isorun_matrix.results.records import RecordedSpec
from isorun_matrix.spec.spec import Spec
from isorun_matrix.text import cut

try:
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise SpecError(f"--ray needs Ray ({error}). Install it with: pip install 'isorun[ray]'") from error

RESOURCE = "isorun"
"""The resource of a node that a run holds alone: ``ray start --resources='{"isorun": 1}'``."""

_PREPARED = "prepared"
_PART = 64 * 2**20  # bytes
_START_SECONDS = 25.0  # until an actor has started and looked at its machine
_CONNECT_SECONDS = 10.0
_LONGEST = 300  # characters of a message


@dataclass(frozen=True)
class _Member:
    """A machine of the spec on its node: its id and address, and the actor."""

    name: str
    node: str
    address: str
    actor: Any

    def __str__(self) -> str:
        return f"machine {self.name} (node {self.address})"

    def call(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        return ray.get(getattr(self.actor, method).remote(*arguments), timeout=timeout)


def run(
    spec: Spec,
    source: Path,
    out: Path,
    address: str,
    progress: Lines,
    choice: Choice,
) -> tuple[MachineRuns, Mapping[str, str]]:
    """Run a spec on its machines.

    Args:
        source: the file that it was read from.
        out: receives the run of each machine in ``machines/NAME``.
        address: of the cluster, or ``auto``.

    Returns:
        The runs, and why machines stopped early, by their name.

    Raises:
        SpecError: the cluster cannot be reached, no node fits a machine, a node is in use or not fit for a run, or
            the models and references cannot be prepared.
    """
    if not spec.machines:
        raise SpecError("--ray needs machines in the spec. See docs/cluster.md")
    if RunFolder(out).has_run():
        raise SpecError(f"{out} is the run of a single machine. Choose another --out.")
    if out.is_file() or (not choice.resume and out.exists() and any(out.iterdir())):
        raise SpecError(f"{out} exists and is not empty. Add --resume, or choose another --out.")
    try:
        _require_reachable(address)
        _require_node()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="isorun")
    except (OSError, RuntimeError, ValueError) as error:
        raise SpecError(
            f"Cannot connect to the Ray cluster {address!r}: {error}. If it requires a token, set RAY_AUTH_MODE=token"
        ) from error
    try:
        prepared = RunFolder(out / _PREPARED)
        nodes = _match(spec, ray.nodes())
        # An error, such as Ctrl-C, kills the actors, and so ends the threads, before these are waited for.
        with ThreadPoolExecutor(len(nodes)) as pool, _members(nodes) as members:
            _check(spec, members, progress)
            with prepared.writing(resume=choice.resume), host_lock.held(prepared.path, progress.note):
                models, references = Preparation(spec, source, prepared, progress, choice, {}, {}).for_machines()
            parts = {name: _Model.read(model) for name, model in models.items()}
            options = {
                "only": None if choice.only is None else [*choice.only],
                "remeasure_disturbed": choice.remeasure_disturbed,
            }
            with Machines([member.name for member in members]) as shown:
                work = partial(_run_on, spec=spec, prepared=prepared, references=references, models=parts)
                jobs = [
                    pool.submit(work, member, out=out / MACHINES, options=options, shown=shown) for member in members
                ]
                reasons = {member.name: job.result() for member, job in zip(members, jobs, strict=True)}
                stopped = {name: reason for name, reason in reasons.items() if reason}
        return results.read(out), stopped
    except RayError as error:  # such as a full disk under the object store
        raise SpecError(f"The Ray cluster failed: {_reason(error)}. Continue with --resume") from error
    finally:
        ray.shutdown()


def _require_reachable(address: str) -> None:
    """Raise ``OSError`` if nothing answers at an address, and ``ValueError`` if it is not ``HOST:PORT``. Ray itself
    would try for minutes."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError("expected HOST:PORT or auto")
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


def _require_node() -> None:
    """Raise ``ValueError`` if no node runs on this host. Ray itself would wait for a minute for one, and name another
    cause."""
    if not Path("/proc/self/comm").exists():  # no Linux: Ray tells, later
        return
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # the process has ended
            if path.read_text(encoding="utf-8").strip() == "raylet":
                return
    raise ValueError(
        "no Ray node runs on this host. Run the command on a node of the cluster, or start one here with `ray start "
        "--address=HEAD:PORT --num-cpus=0`"
    )


def _match(spec: Spec, nodes: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """A node for each machine; those with the most requirements choose first. ``SpecError`` if none is left for one."""
    alive = [node for node in nodes if node["Alive"]]
    assigned: dict[str, Mapping[str, Any]] = {}
    problems = []
    ordered = sorted(spec.machines.items(), key=lambda item: -len(item[1].labels) - len(item[1].resources))
    for name, machine in ordered:
        labelled = [node for node in alive if machine.labels.items() <= node["Labels"].items()]
        required = {**machine.resources, RESOURCE: 1.0}
        fitting = [
            node for node in labelled if all(node["Resources"].get(key, 0) >= count for key, count in required.items())
        ]
        if free := [node for node in fitting if node not in assigned.values()]:
            assigned[name] = min(free, key=lambda node: str(node["NodeID"]))
        elif fitting:
            problems.append(f"machine {name}: every node that fits is another machine of this spec")
        elif labelled:
            addresses = ", ".join(str(node["NodeManagerAddress"]) for node in labelled)
            resources = ", ".join(f'"{key}": {count:g}' for key, count in required.items())
            problems.append(
                f"machine {name}: {addresses} lacks resources. Start it with: ray start --resources='{{{resources}}}'"
            )
        else:
            labels = ",".join(f"{key}={value}" for key, value in machine.labels.items())
            known = {f"{key}={value}" for node in alive for key, value in node["Labels"].items() if "/" not in key}
            near = did_you_mean(labels, known) if known else ""
            problems.append(
                f"machine {name}: no node has the labels{near}. Start one with: ray start --labels={labels}"
            )
    if problems:
        raise SpecError("\n".join(problems))
    return {name: assigned[name] for name in spec.machines}


@contextmanager
def _members(nodes: Mapping[str, Mapping[str, Any]]) -> Iterator[list[_Member]]:
    """The actors of a run, which end with the block."""
    members = []
    for name, node in nodes.items():
        options = ray.remote(Node).options(
            num_cpus=0,
            resources={RESOURCE: 1},
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        )
        members.append(_Member(name, node["NodeID"], node["NodeManagerAddress"], options.remote()))
    try:
        yield members
    finally:
        for member in members:
            ray.kill(member.actor)


def _check(spec: Spec, members: Sequence[_Member], progress: Lines) -> None:
    """Look at every machine before anything runs; raises ``SpecError`` with the problems of all, and their remedies."""
    problems = []
    deadline = time.monotonic() + _START_SECONDS
    for member in members:
        backends = spec.on(member.name).backends_here
        try:
            member.call("__ray_ready__", timeout=max(0.1, deadline - time.monotonic()))
            before = time.time()
            state = member.call("preflight", backends, timeout=_START_SECONDS)
        except GetTimeoutError:
            problems.append(f"{member}: another run uses it, or it does not answer. Wait for that run, or restart Ray")
            continue
        except RayError as error:
            if any(node["NodeID"] == member.node and node["Alive"] for node in ray.nodes()):
                problems.append(f"{member}: isorun does not start there ({_reason(error)}). {preflight.INSTALLATION}")
            else:  # cut off for so long that Ray gave it up, which it learns when it is back
                problems.append(f"{member}: the node was lost. Start Ray there again")
            continue
        problems += [f"{member}: {problem}" for problem in preflight.problems_of(state, before)]
        progress.note(f"{member}: {preflight.described(state)}")
    if problems:
        raise SpecError("\n".join(problems))


@dataclass(frozen=True)
class _Model:
    """A model to send: a digest of its files, the name of the ONNX file, and for each file its SHA-256 and parts."""

    digest: str
    name: str
    files: Mapping[str, tuple[str, Sequence[Any]]]

    @classmethod
    def read(cls, model: PreparedModel) -> _Model:
        """Put the files of a model into Ray's object store, once for all nodes."""
        files = {}
        for path in files_of(Path(model.path)):
            if path.parent != Path(model.path).parent:
                raise SpecError(f"{model.path} has weights in another folder ({path}). Save it with weights beside it")
            hashed = hashlib.sha256()
            parts = []
            with path.open("rb") as file:
                while part := file.read(_PART):
                    hashed.update(part)
                    parts.append(ray.put(part))
            files[path.name] = (hashed.hexdigest(), parts)
        digests = sorted((name, digest) for name, (digest, _) in files.items())
        return cls(sha256(repr(digests).encode()), Path(model.path).name, files)


def _run_on(
    member: _Member,
    *,
    spec: Spec,
    prepared: RunFolder,
    references: Mapping[str, str],
    models: Mapping[str, _Model],
    out: Path,
    options: Mapping[str, Any],
    shown: Machines,
) -> str | None:
    """Run a machine to its end; returns why it stopped early."""
    own = spec.on(member.name)
    folder = RunFolder(out / member.name)
    try:
        used = {name: models[name] for name, *_ in own.combinations()}
        for model in used.values():
            if member.call("receive_model", model.digest, model.files):
                shown.note(member.name, f"received {model.name}")
        stored = folder.jobs()
        record = prepared.record()  # the path alone could be that of another run, which was removed
        identity = sha256(f"{record.created}/{record.seed}/{folder.path}".encode())[:16]
        lacking = member.call("prepare", identity, dict(_prepared(own, prepared, references)), stored)
        for place in stored:  # run.json is the first
            if place in lacking:
                member.call("restore", place, folder.files(place))
        named = {name: (model.digest, model.name) for name, model in used.items()}
        for item in member.actor.run.options(num_returns="streaming").remote(named, options, stored):
            event = ray.get(item)
            if "place" in event:
                folder.receive(event["place"], event["files"])
            elif "failed" in event:
                reason = cut(str(event["failed"]), _LONGEST)
                shown.note(member.name, reason)
                return reason
            else:
                shown.show(member.name, event)
        member.call("clear")
    except RayError as error:
        reason = f"lost: {_reason(error)}"
        shown.note(member.name, reason)
        return reason
    return None


def _prepared(spec: Spec, prepared: RunFolder, references: Mapping[str, str]) -> Iterator[tuple[str, Files]]:
    """The prepared run with the spec of one machine."""
    record = prepared.record().model_copy(update={"spec": RecordedSpec.from_plain(spec.model_dump(mode="json"))})
    yield ".", {RUN: RunFolder.encoded(record)}
    for name in dict.fromkeys(f"{model}/{shape.name}" for model, shape, *_ in spec.combinations()):
        place = str(prepared.reference(name, references[name]).relative_to(prepared.path))
        yield place, prepared.files(place)


def _reason(error: RayError) -> str:
    """The cause of an error on a node, in a line: Ray's own messages hold representations and dumps of its state."""
    if isinstance(error, RayActorError):
        return "the node, or isorun's process there, has ended or cannot be reached"
    cause = error.cause if isinstance(error, RayTaskError) else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return cut(lines[0], _LONGEST) if lines else type(cause).__name__
