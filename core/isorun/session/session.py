"""The session: one model, one backend, one calling convention, whatever the hardware.

It validates feeds and dispatches to the backend that :mod:`isorun.session.backend_selection` found: on this thread,
or on others, as :mod:`isorun.session.scheduled_calls` describes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from isorun.compilation.compiler import Compiler
from isorun.compilation.options import Options
from isorun.errors import InvalidFeeds
from isorun.models.feeds import FeedChecker, refuse_options
from isorun.models.hub import checkpoint_of
from isorun.models.source import open_model
from isorun.session import fork
from isorun.session.backend_selection import resolve
from isorun.session.io_binding import IOBinding
from isorun.session.scheduled_calls import ScheduledCalls
from isorun.session.scheduling.metrics import Metrics
from isorun.session.scheduling.scheduler import Scheduler
from isorun.system import portable
from isorun.system.arguments import check_count, check_flag
from isorun.system.cache import Cache
from isorun.types import Feeds, ModelInfo, ModelMetadata, Provenance, TensorSpec, threads_in_words

if TYPE_CHECKING:
    import numpy as np
    import onnx


class Session(ScheduledCalls):
    """Runs one model on one backend, in the calling convention of ``onnxruntime.InferenceSession``.

    ::

        with isorun.Session("bert.onnx") as session:
            (hidden,) = session.run(["last_hidden_state"], feeds)
            print(session.provenance)

    A session may be used from many threads at once.

    Args:
        model: an ONNX file, its bytes, an ``onnx.ModelProto``, the folder of a checkpoint
            (``config.json`` and ``model.safetensors``), or a short name such as ``all-MiniLM-L6-v2``.
        backend: a backend's name; a list of names in order of preference; or ``"auto"``, which is every installed
            backend by its declared priority: those on GPUs first (docs/backends.md). With a list or ``"auto"``, a
            backend that does not support the request is skipped, which is logged and recorded in
            ``provenance.skipped``. A single name has no fallback.
        device: one of the backend's devices; ``None`` for its first.
        precision: ``"fp32"``, ``"tf32"``, ``"bf16"``, ``"fp16"``, ``"int8"`` or ``"fp64"``; never another. ``"auto"``
            measures once and selects the fastest precision of the backend within the tolerance; with
            ``backend="auto"``, it runs what ``isorun choose`` chose, if that still holds (docs/choosing.md).
        padding: ``"remove"`` runs dense layers on real tokens only; ``"keep"`` runs the graph unchanged; ``"auto"``
            chooses for every batch. Where padding may be removed, outputs with a value for each token are zero at
            masked positions in every batch; elsewhere the graph decides (``provenance.details["padding"]``).
        deterministic: the same bits for a row whatever the batch, the padding and the number of threads, on one machine
            and with one version of the runtime: one graph runs every batch, or rows run one at a time. An error for a
            backend that cannot (``isorun backends``), and for a model that is no fused encoder (docs/padding.md).
        threads: number of threads for one run; ``None`` for the cores that this process may use (CPU affinity and
            cgroup quota). An error if the backend does not support it.
        tolerance: for ``precision="auto"``, the minimum cosine similarity to fp32 of any request's outputs; ``None``
            for 0.99. Held-out requests must be twice as close (docs/precision-auto.md).
        quality: for ``precision="auto"`` and a model that makes vectors of texts, the minimum share of a text's ten
            nearest neighbours that a search with these vectors keeps; ``None`` for 0.9. The low end of the 95 %
            interval must reach it. An error without texts: a tokenizer beside the model, or samples.
        environment: run in a worker process in this isolated environment (:mod:`isorun.isolation.environments`), for a
            backend that cannot share this one; ``None`` runs in this process.
        timeout: maximum time in seconds of a run in an environment, or of reading ``provenance``; then the worker is
            killed and :class:`isorun.WorkerTimeout` is raised. ``None`` for no limit. Compilation has no limit.
        options: settings of the backend, listed by ``isorun backends --options``; of one of several, under its name.
        calibration: samples for ``precision="int8"`` and ``"auto"``: feeds as for :meth:`run`, or texts for the
            tokenizer next to the model, to which isorun adds its own. ``"auto"`` judges precisions on every fourth
            sample, which it holds out, if those are 24 requests or more. ``None`` for isorun's texts alone or, without
            a tokenizer, random tokens (with a :class:`isorun.compilation.calibration.CalibrationWarning` for int8).
        outputs: the outputs to compute, in this order; ``None`` for all. If they read a single position, as a
            classifier or pooler reads the first token, the last layer is computed for that position only.
            Of a decoder without those of its key-value cache, the cache is no input: it is empty.
        max_queue: maximum number of rows that wait for :meth:`submit`, :meth:`run_async`, :meth:`arun` and
            :meth:`arun_many`; calls that exceed it raise :class:`isorun.QueueFull`, unless nothing is waiting.
        cache_dir: the cache folder; ``None`` for ``$ISORUN_CACHE_DIR`` or the user's cache folder; ``False`` for a
            temporary folder that only this user can read, removed when the session is closed.
        verify_cache: hash the model and every cached file that is opened, which detects bit rot (about 0.7 s per GB);
            otherwise files with unchanged size, timestamps and inode are trusted. A damaged entry is made again.
            ``None``: only if ``$ISORUN_CACHE_VERIFY`` is 1.

    Raises:
        BackendNotFound: no backend of that name is installed.
        BackendUnavailable: the backend does not support the request; the error says why and what to do.
        InvalidModel: the model is missing, damaged, or refers to files outside its folder.
        UnsupportedModel: the backend lacks some of the model's operators.
        BackendFailed: the runtime rejected the model.
        EnvironmentNotFound, EnvironmentBroken: the environment does not exist, or its interpreter is gone.
        InvalidFeeds: ``outputs`` names an unknown output, or the calibration samples are invalid.
        CacheError: the cache folder is not writable, belongs to another user, or is writable by other users.
        InvalidArgument: an invalid argument, or one without effect; an ``InvalidType`` is of the wrong type.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto,
        backend: str | Sequence[str] = "auto",
        *,
        device: str | None = None,
        precision: str = "fp32",
        padding: str = "auto",
        deterministic: bool = False,
        threads: int | None = None,
        tolerance: float | None = None,
        quality: float | None = None,
        environment: str | None = None,
        timeout: float | None = None,
        options: Mapping[str, Any] | None = None,
        calibration: Iterable[Feeds] | Iterable[str] | None = None,
        outputs: Sequence[str] | None = None,
        max_queue: int = 10_000,
        cache_dir: str | os.PathLike[str] | Literal[False] | None = None,
        verify_cache: bool | None = None,
    ) -> None:
        max_queue = check_count(max_queue, "max_queue")
        compile_options = Options(
            device=device,
            precision=precision,
            padding=padding,
            deterministic=deterministic,
            threads=threads,
            tolerance=tolerance,
            quality=quality,
            environment=environment,
            timeout=timeout,
            backend_options=options,
            calibration=calibration,
        )
        cache = Cache(cache_dir, verify=verify_cache)
        source = open_model(checkpoint_of(model, cache), cache, outputs)
        self._resolved = resolve(Compiler(source, compile_options, cache), backend)
        self._model, self._backend = self._resolved.model, self._resolved.backend
        device_arrays = self._backend.capabilities.device_arrays
        self._checker = FeedChecker(self._model.info, device_arrays=device_arrays, any_mask=not deterministic)
        self._max_queue = max_queue
        self._closers = ExitStack()
        self._closers.callback(self._resolved.close)
        self._scheduler = self._make_scheduler()
        self._source, self._cache = source, cache
        self._provenance: Provenance | None = None
        portable.notify_of_forks(self)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feeds,
        run_options: Any = None,
        *,
        device_outputs: bool = False,
    ) -> list[Any]:
        """Run once.

        Args:
            output_names: the outputs to return, in that order; ``None`` or empty for all.
            input_feed: input name to ``numpy.ndarray``, of the dtypes and shapes that ``get_inputs()`` gives.
                Lists and Python numbers are converted if each is a value of that dtype; fractions are rounded to it.
            run_options: must be ``None``; present for compatibility with ONNX Runtime.
            device_outputs: leave outputs in device memory. GPU backends also accept feeds that are there already:
                anything with ``__cuda_array_interface__`` or ``__dlpack__``.

        Returns:
            One array for each output: ``numpy.ndarray``, or :class:`isorun.plugin.device_arrays.DeviceArray` with
            ``device_outputs``. They belong to the caller: no later run changes them.

        Raises:
            InvalidFeeds: a name, dtype, rank, fixed dimension or index that the model does not accept.
            BackendFailed: the runtime failed; its own error is the cause.
            BackendUnavailable: ``device_outputs`` with a backend without device arrays.
        """
        if run_options is not None:
            refuse_options(run_options)
        output_names, input_feed = self._checker.check_call(output_names, input_feed)
        if device_outputs is not False and check_flag(device_outputs, "device_outputs"):
            return self._model.run_on_device(output_names, input_feed)
        return self._model.run(output_names, input_feed)

    def metrics(self) -> Metrics:
        """Counts and times of all scheduled requests: :meth:`submit`, :meth:`run_async`, :meth:`arun`, :meth:`map`; and
        how often the model was compiled again after a failed run, of any kind."""
        return replace(self._scheduler.metrics(), recompiled=self._resolved.compiler.recompilations.count)

    def device_times(self, input_feed: Feeds, runs: int = 100) -> np.ndarray | None:
        """The time of one run on a GPU by its own events, with feeds and outputs in device memory.

        Args:
            input_feed: as in :meth:`run`, in host memory; copied to the device once.
            runs: number of runs.

        Returns:
            (runs,), float64, milliseconds. ``None`` if the backend has no device or no events.

        Raises:
            IsorunError: as :meth:`run`.
        """
        runs = check_count(runs, "runs")
        return self._model.device_times(self._checker.check(input_feed), runs)

    def io_binding(self) -> IOBinding:
        """A new binding of arrays to inputs and outputs, for :meth:`run_with_iobinding`."""
        return IOBinding(self._model, self._checker)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: None = None) -> None:
        """Run once on bound arrays; the binding holds the results.

        Raises:
            InvalidFeeds: the binding belongs to another session, or is not a binding of isorun.
        """
        refuse_options(run_options)
        if not (isinstance(iobinding, IOBinding) and iobinding.is_for(self._model)):
            kind = type(iobinding).__name__
            what = "belongs to another session" if isinstance(iobinding, IOBinding) else f"is a {kind}"
            raise InvalidFeeds(f"The binding {what}. Create one with io_binding() of this session.")
        iobinding.run()

    def get_inputs(self) -> list[TensorSpec]:
        """The inputs that must be fed, with ``.name``, ``.type`` and ``.shape``."""
        return self._model.info.required

    @property
    def model_info(self) -> ModelInfo:
        """What is known of the model, such as which input is its mask."""
        return self._model.info

    @property
    def path(self) -> Path:
        """The model's ONNX file; in the cache if it was passed as bytes or as a checkpoint."""
        return self._source.path

    def get_overridable_initializers(self) -> list[TensorSpec]:
        """The inputs that have a default value."""
        return [spec for spec in self._model.info.inputs if spec.overridable]

    def get_outputs(self) -> list[TensorSpec]:
        """The outputs, with ``.name``, ``.type`` and ``.shape``."""
        return list(self._model.info.outputs)

    def get_modelmeta(self) -> ModelMetadata:
        """The model's own metadata, as ``onnxruntime.InferenceSession.get_modelmeta`` returns it."""
        metadata = self._model.info.metadata
        return metadata._replace(custom_metadata_map=dict(metadata.custom_metadata_map))

    def get_providers(self) -> list[str]:
        """The providers or devices that run at least one node, as the runtime reports them."""
        return list(self.provenance.operators)

    @property
    def provenance(self) -> Provenance:
        """What runs, where, and how it was made: up to date whenever it is read, which asks the runtime once.

        After :meth:`close`, what it was when it was last read.
        """
        if self._provenance is None or not self._model.closed:
            self._provenance = self._resolved.provenance()
        return self._provenance

    def close(self) -> None:
        """Release the model. Waits for submitted runs; a second call does nothing.

        A callback may call it.
        """
        if self._scheduler.close():
            try:
                self._closers.close()
            finally:
                self._cache.release()

    def __enter__(self) -> Self:
        self._model.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        config = self._resolved.config
        state = ", closed" if self._model.closed else ""
        return (
            f"<isorun.{type(self).__name__} of {self._source.path.name} on {self._backend.name} "
            f"({config.device}, {config.precision}, {threads_in_words(config.threads)}{state})>"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("Sessions cannot be pickled or copied. Open one in each process; threads can share a session.")

    def _forked(self) -> None:
        """In a forked child: a session with a worker starts another at its next call; any other refuses calls."""
        if self._model.closed:
            return
        fork.keep_for_good(self._scheduler)
        self._scheduler = self._make_scheduler()
        if self._resolved.worker is not None:
            self._model.unlock_after_fork()
            return
        fork.keep_for_good(self._model)
        self._model.refuse(fork.REFUSAL)

    def _make_scheduler(self) -> Scheduler:
        return Scheduler(self._resolved, self._checker, self._closers, self._max_queue)
