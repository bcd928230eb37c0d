"""The session: one model, one backend, one calling convention, whatever the hardware.

It checks what is fed and dispatches: to the backend that :mod:`isorun.compilation.select` found, on this thread or another,
one by one or in batches.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from isorun.compilation.select import Wishes, resolve
from isorun.errors import BackendFailed, InvalidFeeds, IsorunError
from isorun.models import source as models
from isorun.models.feeds import FeedChecker
from isorun.session import fork
from isorun.session.executor import Background
from isorun.session.io_binding import IOBinding
from isorun.system.cache import Cache
from isorun.types import Feeds, ModelInfo, ModelMetadata, Provenance, TensorSpec

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy as np
    import onnx

    from isorun.session import batching


class Session:
    """Runs one model on one backend, in the calling convention of ``onnxruntime.InferenceSession``.

    ::

        with isorun.Session("bert.onnx") as session:
            (hidden,) = session.run(["last_hidden_state"], feeds)
            print(session.provenance)

    A session may be used from many threads at once.

    Args:
        model: an ONNX file, its bytes, an ``onnx.ModelProto``, or the folder of a checkpoint
            (``config.json`` and ``model.safetensors``).
        backend: a backend's name; a list of names in order of preference; or ``"auto"``, which is
            ``isorun.plugin.registry.AUTO_ORDER``. With a list or ``"auto"``, a backend that cannot take the model
            as asked is passed over, and ``provenance.passed_over`` says why; a single name is taken or refused.
        device: one of the backend's devices; ``None`` for its first.
        precision: what to compute in: ``"fp32"``, ``"bf16"``, ``"fp16"``, ``"int8"``, ``"fp64"``. It is what is asked
            for or an error. ``"auto"`` measures, the first time, and takes the fastest that the backend has within
            the tolerance.
        padding: ``"remove"`` runs dense layers over real tokens alone; ``"keep"`` runs the graph as it came;
            ``"auto"`` chooses for every batch by what was measured to pay. With either of the others than
            ``"keep"``, outputs with a value for each token are zero at the positions that the mask leaves out.
        threads: how many threads a run may use; ``None`` for the cores that this process may use
            (CPU affinity and cgroup quota). A backend whose threads cannot be set refuses a number.
        tolerance: for ``precision="auto"``, the minimum cosine of any request's outputs to fp32's; ``None`` for 0.99.
            Held-out requests must be twice as near (docs/precision.md).
        environment: run in a worker process in the environment of that name (:mod:`isorun.isolation.environments`), for a
            backend that cannot share this one; ``None`` runs in this process.
        options: the backend's own settings; ``isorun backends`` lists them.
        calibration: what ``precision="int8"`` is calibrated on: feeds as :meth:`run` takes them, or texts for the
            tokenizer beside the model. ``"auto"`` judges precisions on every fourth sample, which it holds out, if
            those are 24 requests or more. ``None`` for the texts that come with isorun or, where there is no tokenizer,
            random tokens (int8 with a :class:`isorun.compilation.calibration.CalibrationWarning`).
        outputs: those of the model's outputs that are wanted, in this order; ``None`` for all. What only others need is
            left out. Where the wanted ones read a single position, as a classifier or pooler reads the first token,
            the last layer is computed for that position alone.
        cache_dir: where lowered models are kept; ``None`` for ``$ISORUN_CACHE_DIR`` or the user's cache folder.

    Raises:
        BackendNotFound: no backend of that name is installed.
        BackendUnavailable: the backend cannot do what is asked; the error says why and what to do.
        InvalidModel: the model is missing, damaged, or refers to files outside its folder.
        UnsupportedModel: the backend lacks some of the model's operators.
        BackendFailed: the runtime refused the model.
        EnvironmentNotFound, EnvironmentBroken: there is no such environment, or its interpreter is gone.
        InvalidFeeds: the model has no output of a name in ``outputs``, or no such samples are taken for calibration.
        CacheError: the cache folder cannot be written to.
        ValueError, TypeError: an argument that means nothing, or one that nothing would heed.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto,
        backend: str | Sequence[str] = "auto",
        *,
        device: str | None = None,
        precision: str = "fp32",
        padding: str = "auto",
        threads: int | None = None,
        tolerance: float | None = None,
        environment: str | None = None,
        options: Mapping[str, Any] | None = None,
        calibration: Iterable[Feeds] | Iterable[str] | None = None,
        outputs: Sequence[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        wishes = Wishes.of(device, precision, padding, threads, tolerance, environment, options, calibration)
        cache = Cache(cache_dir)
        source = models.open_model(model, cache, outputs)
        self._resolved = resolve(source, backend, wishes, cache)
        self._backend, self._model = self._resolved.backend, self._resolved.model
        self._executable = self._resolved.executable
        capabilities = self._backend.capabilities
        self._checker = FeedChecker(
            self._model.info, indices=not capabilities.checks_indices, device_arrays=capabilities.device_arrays
        )
        self._turns = None if capabilities.thread_safe else threading.Lock()
        self._background = Background()
        self._closed = False
        fork.watch(self)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feeds,
        run_options: None = None,
        *,
        device_outputs: bool = False,
    ) -> list[Any]:
        """Run once.

        Args:
            output_names: the outputs wanted, in that order; ``None`` (or none) for all.
            input_feed: input name to ``numpy.ndarray``, of the dtypes and shapes that ``get_inputs()`` gives.
                Lists and Python's numbers are made arrays of the input's dtype, where nothing is lost by it.
            run_options: there for the calling convention; anything but ``None`` is refused.
            device_outputs: leave outputs in the device's memory. A backend for GPUs also takes feeds that are there
                already: anything with ``__cuda_array_interface__`` or ``__dlpack__``.

        Returns:
            One array for each output: ``numpy.ndarray``, or :class:`isorun.plugin.device_arrays.DeviceArray` with
            ``device_outputs``. They are the caller's: no later run changes them.

        Raises:
            InvalidFeeds: a name, dtype, rank, fixed dimension or index that the model does not take.
            BackendFailed: the runtime failed; its own error is the cause.
            BackendUnavailable: outputs are to stay on a device, and the backend has none.
        """
        if self._closed or run_options is not None:
            self._refuse(run_options)
        execute = self._on_device() if device_outputs else self._executable.run
        input_feed = self._checker.check(input_feed)
        if output_names is not None and len(output_names):
            self._checker.check_outputs(output_names)
        else:
            output_names = None
        try:
            if self._turns is None:
                return execute(output_names, input_feed)
            with self._turns:
                self._check_open()  # it may have been closed while this waited
                return execute(output_names, input_feed)
        except BackendFailed:
            self._check_open()  # another thread may have closed it meanwhile
            self._checker.explain(input_feed)  # a clearer word, where the runtime met a bad index, say
            raise

    def device_times(self, input_feed: Feeds, runs: int = 100) -> np.ndarray | None:
        """How long a GPU takes over one run, by its own events: feeds and outputs stay where they are on it.

        Args:
            input_feed: as in :meth:`run`, in host memory; copied to the device once.
            runs: how often.

        Returns:
            (runs,), float64, milliseconds. ``None`` where the backend has no device, or nothing to put events on.

        Raises:
            As :meth:`run`.
        """
        self._check_open()
        input_feed = self._checker.check(input_feed)
        with self._turns or nullcontext():
            self._check_open()
            return self._executable.device_times(input_feed, runs)

    def submit(self, output_names: Sequence[str] | None, input_feed: Feeds) -> Future[list[Any]]:
        """Run on another thread.

        Returns:
            A future of what :meth:`run` returns or raises.
        """
        return self._background.submit(self.run, output_names, input_feed)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feeds,
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: None = None,
    ) -> None:
        """Run on another thread and call ``callback(outputs, user_data, error)`` there.

        ``error`` is empty where the run succeeded; where it failed, ``outputs`` is empty and ``error`` says why. What
        the callback raises is logged by ``concurrent.futures``.
        """

        def work() -> None:
            try:
                outputs, message = self.run(output_names, input_feed, run_options), ""
            except IsorunError as error:
                outputs, message = [], str(error)
            except Exception as error:  # noqa: BLE001  # whatever it is, somebody waits to be called
                outputs, message = [], f"{type(error).__name__}: {error}".removesuffix(": ")
            callback(outputs, user_data, message)

        # What a callback of a future raises is logged: here, what the caller's callback raised.
        self._background.submit(work).add_done_callback(lambda future: future.result())

    async def arun(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feeds,
        *,
        max_tokens: int | None = None,
        max_wait: float = 0.005,
    ) -> list[Any]:
        """Run without blocking the event loop.

        Args:
            output_names: as in :meth:`run`.
            input_feed: as in :meth:`run`; with ``max_tokens``, a single request as in :meth:`map`.
            max_tokens: run in one batch with the requests of other callers that ask for the same outputs with
                the same ``max_tokens`` and ``max_wait``; ``None`` runs these feeds as they are.
            max_wait: seconds that a request may wait for others.

        Returns:
            What :meth:`run` returns or raises; with ``max_tokens``, a request's result as in :meth:`map`.
        """
        import asyncio

        if max_tokens is None:
            return await asyncio.wrap_future(self.submit(output_names, input_feed))
        return await asyncio.wrap_future(self._batcher(output_names, max_tokens, max_wait).submit(input_feed)[0])

    def map(
        self,
        requests: Iterable[Feeds],
        *,
        output_names: Sequence[str] | None = None,
        max_tokens: int = 4096,
        max_wait: float = 0.05,
        return_exceptions: bool = False,
    ) -> batching.Results:
        """Run single requests in batches of like length.

        Args:
            requests: each a mapping of input name to an array without the batch's axis, or with one of size 1.
                Read by a thread of its own, some batches ahead of the results taken; it may be endless.
            output_names: the outputs wanted, in that order; ``None`` for all.
            max_tokens: the most that a batch may hold, rows times its longest row. A longer request runs alone.
            max_wait: seconds that a request may wait for others to share a batch with.
            return_exceptions: give a request's error in place of its result rather than raise it there.

        Returns:
            An iterator of each request's outputs, in the requests' order, with the batch's axis where the request
            had it, and cut to the request's own length. A request that failed raises its error at its place,
            and the iterator goes on after it. ``close()`` stops the work, and so does leaving its ``with`` block.
        """
        self._background.check_open()
        from isorun.session import batching

        return batching.results(
            requests,
            self.run,
            self._layout(output_names),
            max_tokens=max_tokens,
            max_wait=max_wait,
            return_exceptions=return_exceptions,
        )

    def io_binding(self) -> IOBinding:
        """A binding of arrays to inputs and outputs, for :meth:`run_with_iobinding`."""
        self._check_open()
        refuse = self._backend.refuse_device_arrays
        return IOBinding(self._executable, self._checker, refuse, self._check_open, self._turns)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: None = None) -> None:
        """Run once on bound arrays; the results are the binding's.

        Raises:
            InvalidFeeds: the binding is another session's, whose model its arrays are for, or none of isorun's.
        """
        if self._closed or run_options is not None:
            self._refuse(run_options)
        if not (isinstance(iobinding, IOBinding) and iobinding.is_for(self._executable)):
            kind = type(iobinding).__name__
            what = "another session's" if isinstance(iobinding, IOBinding) else f"of the type {kind}"
            raise InvalidFeeds(f"The binding is {what}. Bind the arrays to one of this session's: session.io_binding()")
        iobinding.run()

    def get_inputs(self) -> list[TensorSpec]:
        """The inputs that must be fed, with ``.name``, ``.type`` and ``.shape``."""
        return self._model.info.required

    @property
    def model_info(self) -> ModelInfo:
        """What is known of the model, such as which input is its mask."""
        return self._model.info

    def get_overridable_initializers(self) -> list[TensorSpec]:
        """The inputs that have a value of their own and may be fed another."""
        return [spec for spec in self._model.info.inputs if spec.overridable]

    def get_outputs(self) -> list[TensorSpec]:
        """The outputs, with ``.name``, ``.type`` and ``.shape``."""
        return list(self._model.info.outputs)

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself."""
        info = self._model.info
        return ModelMetadata(info.producer, info.graph_name, "", "", 0, dict(info.metadata))

    def get_providers(self) -> list[str]:
        """The providers or devices that took at least one node, by the runtime's own account."""
        return list(self.provenance.operators)

    @cached_property
    def provenance(self) -> Provenance:
        """What runs, where, and how it came about: asked of the runtime when first read."""
        self._check_open()
        with self._turns or nullcontext():
            self._check_open()  # it may have been closed while this waited
            try:
                return self._resolved.provenance()
            except BackendFailed:
                self._check_open()  # another thread may have closed it meanwhile
                raise

    def close(self) -> None:
        """Let go of the model. Waits for runs that were submitted; a second call does nothing.

        A callback may call it. The runs that would have come after it on the same thread are refused then.
        """
        if not self._background.close():
            return
        self._closed = True
        with self._turns or nullcontext():
            self._resolved.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A session is neither pickled nor copied: its model is in a runtime's memory, with threads at work on it. "
            "Open one in each process, on the same model; within a process, all threads may use this one"
        )

    def _forked(self) -> None:
        """In a forked process: a session with a worker has another there with its next call; any other is refused."""
        if self._closed:
            return
        fork.keep_for_good(self._background)
        self._background = Background()
        if self._resolved.worker is not None:
            self._turns = None if self._turns is None else threading.Lock()
            return
        fork.keep_for_good(self._executable)
        self._closed = self._background.closing = True
        self._background.closed = fork.REFUSAL

    def _on_device(self) -> Callable[..., list[Any]]:
        self._backend.refuse_device_arrays("device_outputs=True")
        return self._executable.run_on_device

    def _check_open(self) -> None:
        if self._closed:
            self._refuse(None)

    def _refuse(self, run_options: object) -> None:
        self._background.check_open()
        raise InvalidFeeds(
            f"run_options is a {type(run_options).__name__}; isorun has no options for a single run: pass None"
        )

    def _layout(self, output_names: Sequence[str] | None) -> batching.Layout:
        from isorun.session import batching

        return batching.Layout(self._model.info, output_names)

    def _batcher(self, output_names: Sequence[str] | None, max_tokens: int, max_wait: float) -> batching.Batcher:
        """The batcher of all callers with the same wishes."""
        here = weakref.ref(self)  # its threads are not to keep alive what nobody else has

        def run(names: Sequence[str], feeds: Feeds) -> list[Any]:
            session = here()
            assert session is not None, "whoever waits for a request has the session"
            return session.run(names, feeds)

        def make() -> batching.Batcher:
            from isorun.session import batching

            return batching.Batcher(run, self._layout(output_names), max_tokens, max_wait, enough=max_tokens)

        return self._background.batcher((tuple(output_names or ()), max_tokens, max_wait), make)
