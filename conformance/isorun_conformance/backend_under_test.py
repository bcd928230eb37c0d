"""The backend under test, and how the checks open models on it."""

from __future__ import annotations

import json
import os
import site
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isorun import Session
from isorun.errors import BackendFailed, BackendUnavailable, InvalidModel, IsorunError, UnsupportedModel
from isorun.isolation import environments
from isorun.isolation.worker.backend import Worker
from isorun.models import lowering
from isorun.models import source as models
from isorun.models.fixed_shapes import fix
from isorun.parity import DEFAULT_TOLERANCES, Parity, Tolerance, compare
from isorun.plugin import registry
from isorun.plugin.backend import Backend, Executable
from isorun.system.cache import Cache
from isorun.system.subprocesses import run
from isorun.types import Capabilities, CompileConfig, Feeds, LoweredModel, devices
from isorun_conformance import process_state
from isorun_conformance.formulas import Formula, sizes
from isorun_conformance.sample_models import Encoder, SampleModel, dense, encoder

_REFERENCE = "reference"


class BackendUnderTest:
    """A backend by name, with a folder for the models and the cache of one run of the suite.

    The arguments are those of :class:`isorun_conformance.suite.Conformance`.
    """

    def __init__(
        self, name: str, environment: str | None, options: Mapping[str, Any], big: bool, device: str | None = None
    ) -> None:
        self.name = name
        self.environment = environment
        self.options: dict[str, Any] = dict(options)
        self.big = big
        self.device = device
        self.about: dict[str, Any] = {}  # what the runtime reports of itself
        self._references: dict[Path, Session] = {}
        self._expected: dict[tuple[Any, ...], dict[str, np.ndarray]] = {}
        self._resources = ExitStack()

    def close(self) -> None:
        """Remove the folder; close the worker and the reference's sessions."""
        self._resources.close()

    @cached_property
    def folder(self) -> Path:
        """For models and the cache; removed when the suite ends."""
        return Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="isorun-conformance-")))

    @cached_property
    def _worker(self) -> Worker | None:
        if self.environment is None:
            return None
        worker = Worker(environments.get(self.environment), self.folder / "cache")
        self._resources.callback(worker.close)
        return worker

    @cached_property
    def backend(self) -> Backend:
        """The backend, looked up once."""
        return registry.get(self.name) if self._worker is None else self._worker.get(self.name)

    @property
    def capabilities(self) -> Capabilities:
        """What it declares."""
        return self.backend.capabilities

    @property
    def config(self) -> CompileConfig:
        """The first precision that it declares on the device, on one thread if that can be set."""
        declared = self.capabilities
        threads = 1 if declared.sets_threads else None
        device = devices.canonical(self.device or declared.devices[0], declared.devices) or str(self.device)
        return CompileConfig(declared.precisions[0], device, threads, self.options)

    def tested_devices(self) -> tuple[str, ...]:
        """The requested device, or one of each form that it declares."""
        return (self.config.device,) if self.device else tuple(devices.examples(self.capabilities.devices))

    def names(self) -> list[str]:
        """The backends that are found where this one is, the members of its family included."""
        if self._worker is not None:
            return self._worker.names()
        family, colon, _ = self.name.partition(":")
        return [*registry.names(), *(f"{family}:{member}" for member in (colon and registry.members(family)) or ())]

    def run_script(self, doing: str, script: str, *arguments: str, seconds: float = 300, here: bool = False) -> Any:
        """Run Python code in a new process of the interpreter that imports the backend. Returns the last line of its
        stdout, parsed as JSON.

        Args:
            doing: what it does, for the message if it fails.
            seconds: its time limit.
            here: whether in this interpreter, also if the backend is in an environment.
        """
        # A file, as an application's script: what it starts may import it again.
        with tempfile.NamedTemporaryFile("w", suffix=".py", dir=self.folder, delete=False, encoding="utf-8") as file:
            file.write(script)
        return json.loads(self._run_python(doing, file.name, *arguments, seconds=seconds, here=here).splitlines()[-1])

    @cached_property
    def effects(self) -> dict[str, Any]:
        """The result of the first :meth:`use_in_a_process`."""
        return self.use_in_a_process()

    def use_in_a_process(self) -> dict[str, Any]:
        """What the use of two models does to a new process: see :func:`isorun_conformance.process_state.use`.

        Also ``printed`` at the exit of the process, and ``left``: what it left in its folder, in the user's, in that
        for temporary files, and in shared memory.
        """
        folder = Path(tempfile.mkdtemp(prefix="process-", dir=self.folder))  # a new one per attempt
        work, temporary, home = folder / "work", folder / "tmp", folder / "home"
        for path in (work, temporary, home):
            path.mkdir()

        def pair(model: SampleModel, feeds: Feeds) -> list[Any]:
            path, lowered = folder / f"{model}.npz", self.lowered(model)
            np.savez(path, **feeds)
            return [{**asdict(lowered), "path": str(lowered.path)}, str(path)]

        models = [pair(model, model.feeds()) for model in (dense(), self.encoder())]
        can_fail = self.capabilities.dynamic_shapes and self.capabilities.static_shapes is None
        failing = pair(sizes(), sizes().feeds(rows=2)) if can_fail else None
        document = {"name": self.name, "models": models, "failing": failing, "config": asdict(self.config)}
        request, result = folder / "request.json", folder / "result.json"
        request.write_text(json.dumps(document), encoding="utf-8")
        arguments = (process_state.__file__, str(request), str(result), str(work))
        variables = {"TMPDIR": str(temporary), "HOME": str(home), "PYTHONUSERBASE": site.getuserbase()}
        variables |= {name: str(home) for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
        variables["ORT_DISABLE_TELEMETRY"] = "1"  # what ONNX Runtime itself keeps there is no fault of a plugin
        printed = self._run_python("compiles, runs and closes", *arguments, variables=variables)
        effects: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        effects["printed"] += printed
        effects["left"] = [
            path.name
            for path in (*work.iterdir(), *home.iterdir(), *temporary.iterdir())
            if path.parent != temporary or path.name not in effects["temporary"]
        ]
        effects["left"] += [name for name in effects["shared"] if Path("/dev/shm", name).exists()]
        return effects

    def _run_python(
        self,
        doing: str,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        seconds: float = 300,
        here: bool = False,
    ) -> str:
        python, environment = sys.executable, dict(os.environ)
        if self._worker is not None and not here:
            python = str(self._worker.environment.python)
            environment = self._worker.environment.variables(self.folder / "cache")
        command = [python, "-P", *arguments]
        exit_ = run(command, env={**environment, **(variables or {})}, timeout=seconds, capture_output=True)
        assert exit_.ok, f"a process that {doing} {exit_.how}: {exit_.log[-500:]}"
        return exit_.output

    def require_available(self) -> None:
        """Skip a check if the backend reports that it cannot be used here."""
        availability = self.backend.availability()
        if not availability.ok:
            pytest.skip(f"{self.name} is not available: {availability.reason}. {availability.remedy}")

    def require(self, declared: object, what: str) -> None:
        """Skip a check of what the backend does not declare."""
        if not declared:
            pytest.skip(f"not declared: {what}")

    def require_padding_removal(self) -> None:
        """Skip a check of the graph that padding is removed from, if the backend does not get it."""
        self.require(self.capabilities.dynamic_shapes, "dynamic shapes, which padding removal needs")
        self.require(self.capabilities.data_dependent_shapes, "data-dependent shapes, which padding removal needs")

    def encoder(self, name: str = "bert-2x32") -> Encoder:
        """An encoder, with symbolic shapes if the backend declares dynamic shapes."""
        return encoder(name, dynamic=self.capabilities.dynamic_shapes)

    def open(self, model: SampleModel | bytes, **arguments: Any) -> Session:
        """Open a session on the backend, with one thread unless given otherwise, if that can be set.

        Skips the check if the backend reports that this machine lacks the requested precision or device, unless that is
        the first one that it declares.
        """
        self.require_available()
        declared = self.capabilities
        try:
            return self.session(model, **arguments)
        except BackendUnavailable as error:
            firsts = {None, declared.precisions[0], self.config.device}
            if error.backend == self.name and not {arguments.get("precision"), arguments.get("device")} <= firsts:
                pytest.skip(f"this machine lacks it: {error.reason}")
            raise

    def open_or_skip(self, model: SampleModel | bytes) -> Session:
        """As :meth:`open`, but skip the check if the runtime refuses the model, for one that is unusual."""
        try:
            return self.open(model)
        except (UnsupportedModel, InvalidModel, BackendFailed) as error:
            pytest.skip(f"the runtime refuses such a model: {str(error).partition(chr(10))[0]}")

    def session(self, model: SampleModel | bytes, **arguments: Any) -> Session:
        """As :meth:`open`, but never skip the check."""
        usual = {"environment": self.environment, "device": self.device, "cache_dir": self.folder / "cache"}
        arguments = {**usual, "threads": self.config.threads, "options": self.options, **arguments}
        if arguments.get("precision") == "int8" and isinstance(model, SampleModel):
            arguments["calibration"] = [model.feeds(seed) for seed in range(16)]
        return Session(model.path(self.folder) if isinstance(model, SampleModel) else model, self.name, **arguments)

    def lowered(
        self, model: SampleModel, dialect: str | None = None, outputs: Sequence[str] | None = None
    ) -> LoweredModel:
        """A model, or the part that some outputs need, in a dialect; ``None`` for any that the backend declares. Of the
        shape of the model's default feeds, if the backend compiles one shape at a time."""
        cache = Cache(self.folder / "cache")
        dialects = self.capabilities.dialects if dialect is None else (dialect,)
        graphs = lowering.ModelGraphs(models.open_model(model.path(self.folder), cache, outputs), cache)
        lowered = graphs.lower(dialects)
        assert dialect in (None, lowered.dialect), f"{model} cannot be lowered to the dialect {dialect!r}"
        if self.capabilities.static_shapes is None:
            return lowered
        return fix(graphs, lowered, {name: array.shape for name, array in model.feeds().items()}).model

    @contextmanager
    def compiled(self, model: LoweredModel) -> Iterator[Executable]:
        """A model that the backend has compiled, without a session around it."""
        self.require_available()
        executable = self.backend.compile(model, self.config)
        try:
            yield executable
        finally:
            executable.close()

    def open_run_close(self, model: SampleModel, feeds: Feeds) -> list[Any]:
        """Use a model once. In an environment, by the one worker: a worker per session would hide what leaks."""
        if self._worker is None:
            with self.open(model) as session:
                outputs = session.run(None, feeds)
                assert session.provenance.precision
                return outputs
        lowered = self.lowered(model)
        with self.compiled(lowered) as executable:
            outputs = executable.run(lowered.info.output_names, feeds)
            executable.report()
            return outputs

    def expected(self, model: SampleModel, feeds: Feeds) -> dict[str, np.ndarray]:
        """The model's outputs, by name: from its formula, or in fp64 from the reference backend."""
        if isinstance(model, Formula):
            return model.outputs(feeds)
        path = model.path(self.folder)
        key = (path, *((name, np.shape(array), np.asarray(array).tobytes()) for name, array in feeds.items()))
        if key not in self._expected:
            self._expected[key] = self._compute(model, path, feeds)
        return self._expected[key]

    def _compute(self, model: SampleModel, path: Path, feeds: Feeds) -> dict[str, np.ndarray]:
        if path not in self._references:
            try:
                session = Session(path, _REFERENCE, precision="fp64", padding="keep", cache_dir=self.folder / "oracle")
            except IsorunError as error:
                raise IsorunError(f"The reference backend cannot run {model}: {error}") from error
            self._references[path] = self._resources.enter_context(session)
        reference = self._references[path]
        return named(reference, reference.run(None, feeds))

    def assert_accurate(
        self,
        model: SampleModel,
        session: Session,
        feeds: Feeds,
        outputs: Mapping[str, Any] | None = None,
        *,
        precision: str | None = None,
        tolerance: Tolerance | None = None,
        what: str = "",
    ) -> Parity:
        """Check the outputs' types, and compare their values with the reference's. Returns the comparison.

        Args:
            outputs: by name; ``None`` to run the session.
            precision: whose tolerance applies; ``None`` for the first that the backend declares.
            tolerance: another tolerance.
            what: what the outputs are, for the message.
        """
        if outputs is None:
            before = {name: np.array(array) for name, array in feeds.items()}
            outputs = named(session, session.run(None, feeds))
            for name, array in before.items():
                np.testing.assert_array_equal(feeds[name], array, err_msg=f"run() changed the feed {name!r}")
        expected, info = self.expected(model, feeds), session.model_info
        precision = precision or self.capabilities.precisions[0]
        _check_types(session, outputs, precision)
        parity = compare(
            outputs,
            {spec.name: expected[spec.name] for spec in session.get_outputs() if spec.name in outputs},
            feeds.get(info.mask) if info.mask else None,
            tolerance or DEFAULT_TOLERANCES[self.capabilities.tolerance(precision)],
            token_level=info.token_outputs,
        )
        if parity.verdict != "pass":
            raise WrongOutputs(f"{what or model} is wrong: {'; '.join(parity.reasons)}", model)
        return parity


class WrongOutputs(AssertionError):
    """Outputs of a kind of model that differ from the reference's."""

    def __init__(self, message: str, model: SampleModel) -> None:
        super().__init__(message)
        self.model = type(model).__name__


def _check_types(session: Session, outputs: Mapping[str, Any], precision: str) -> None:
    specs = {spec.name: spec for spec in session.get_outputs()}
    for name, value in outputs.items():
        assert type(value) is np.ndarray, f"{name} must be a numpy.ndarray, got {type(value).__name__}"
        declared = specs[name].dtype or np.dtype(object)  # text
        wide = precision == "fp64" and declared.kind == "f" and value.dtype == np.float64
        assert wide or value.dtype == declared, f"{name} must be {declared}, got {value.dtype}"


def named(session: Session, values: list[Any]) -> dict[str, Any]:
    """Output name to value, for all outputs."""
    assert isinstance(values, list), f"run() must return a list of arrays, got {type(values).__name__}"
    outputs = session.get_outputs()
    assert len(values) == len(outputs), f"run() must return {len(outputs)} outputs, got {len(values)}"
    return {spec.name: value for spec, value in zip(outputs, values, strict=True)}
