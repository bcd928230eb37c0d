"""A model on a backend that compiles one shape at a time (``Capabilities.static_shapes``), as an executable for any.

:mod:`isorun.compilation.buckets` chooses the shapes, and :mod:`isorun.compilation.executable_pool` bounds the number of
executables. Feeds are padded and split, and results are cut and joined.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from isorun.compilation.buckets import Bucket, Buckets, Part
from isorun.compilation.executable_pool import ExecutablePool
from isorun.compilation.index_check import with_counts
from isorun.compilation.output_check import OutputCheck
from isorun.compilation.recompilation import NotCompiled
from isorun.errors import BackendFailed, InvalidFeeds, UnsupportedModel, WorkerDied, WorkerTimeout
from isorun.models.fixed_shapes import FixedModel
from isorun.plugin.backend import Backend, Executable, SupportsSize
from isorun.plugin.plugin_errors import called, violation
from isorun.types import INDEX_ERRORS, Feeds, LoweredModel, RuntimeReport, StaticShapes

_SAMPLE = 32  # the size of dimensions in the report on a model that has not run

_numbers = itertools.count()


class Key(NamedTuple):
    """Identifies an executable in the pool of a model, by the number of the graph's :class:`ShapedExecutable` and a
    shape."""

    graph: int
    bucket: Bucket

    def __str__(self) -> str:
        return str(self.bucket)


class Compiled(NamedTuple):
    """A plugin's executable of one shape, and the check of its outputs."""

    executable: Executable
    check: OutputCheck


Fix = Callable[[LoweredModel, Mapping[str, tuple[int, ...]]], FixedModel]
"""Makes a model for one shape of each input."""


class Shapes:
    """The executables of all graphs of a model.

    Args:
        fix: makes the models that it compiles.
        compile_plainly: compiles a model as it is.
    """

    def __init__(
        self, backend: Backend, precision: str, fix: Fix, compile_plainly: Callable[[LoweredModel], Executable]
    ) -> None:
        static = backend.capabilities.static_shapes
        assert static is not None
        self.backend: Backend = backend
        self.static: StaticShapes = static
        self.precision: str = precision
        self.fix: Fix = fix
        self.compile_plainly: Callable[[LoweredModel], Executable] = compile_plainly
        self._exact: dict[str, str] | None = None  # why sizes of its graphs are not rounded
        self.pool: ExecutablePool[Key, Compiled] = ExecutablePool(
            backend.name, static.executables, static.memory, self._close
        )

    def executable(self, model: LoweredModel) -> Executable:
        """An executable of a lowered model, for any shape that it accepts, as :class:`ShapedExecutable`."""
        fixed = {spec.name: sizes for spec in model.info.inputs if (sizes := spec.fixed_shape) is not None}
        if len(fixed) == len(model.info.inputs):
            return self.compile_plainly(self.fix(model, fixed).model)
        executable = ShapedExecutable(self, model)
        self._exact = {**executable.buckets.exact, **(self._exact or {})}
        executable.prepare()
        return executable

    def note(self) -> dict[str, Any]:
        """The shapes that are compiled, with the seconds that it took, for provenance; empty for a model of one."""
        if self._exact is None:
            return {}
        compiled = {str(key): round(seconds, 3) for key, seconds in self.pool.compiled().items()}
        exact = {"exact": self._exact} if self._exact else {}
        return {"static_shapes": {"compiled": compiled, "evicted": self.pool.evicted, **exact}}

    def _close(self, compiled: Compiled) -> None:
        called(self.backend, "close()", compiled.executable.close)


class ShapedExecutable(Executable):
    """An executable for any shape, of executables of one shape each. Raises ``UnsupportedModel`` if an input is not a
    tensor."""

    def __init__(self, shapes: Shapes, model: LoweredModel) -> None:
        name = shapes.backend.name
        for spec in model.info.inputs:
            if not spec.type.startswith("tensor("):
                raise UnsupportedModel(f"{name} compiles fixed shapes, and input {spec.name!r} is a {spec.type}")
        self._shapes, self._model, self._pool = shapes, model, shapes.pool
        self.buckets: Buckets = Buckets(name, shapes.static, model.info)
        self._number = next(_numbers)

    def prepare(self) -> None:
        """Compile the smallest shape, so that an error of the model is raised where a session is opened.

        It has no effect on a model with other symbolic dimensions than rows and lengths.
        """
        if (bucket := self.buckets.first()) is not None:
            with self._using(bucket, longer=False):
                pass

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        parts = self.buckets.parts(feeds)
        results = [self._run(output_names, feeds, part) for part in parts]
        if len(parts) == 1:
            return results[0]
        rows = np.concatenate([part.rows for part in parts if part.rows is not None])
        order = None if (np.diff(rows) > 0).all() else np.argsort(rows)
        return [
            _joined(name, arrays, order) for name, arrays in zip(output_names, zip(*results, strict=True), strict=True)
        ]

    def report(self) -> RuntimeReport:
        compiled = [key for key in self._pool.compiled() if key.graph == self._number]
        bucket = compiled[-1].bucket if compiled else self.buckets.first() or self._sample()
        with self._using(bucket, longer=False) as (_, used):
            return used.executable.report()

    def close(self) -> None:
        self._pool.discard(lambda key: key.graph == self._number)

    @contextmanager
    def _using(self, bucket: Bucket, *, longer: bool) -> Iterator[tuple[Key, Compiled]]:
        def compile_one() -> tuple[Compiled, int]:
            fixed = self._shapes.fix(self._model, self.buckets.shapes(bucket))
            try:
                executable = self._shapes.compile_plainly(fixed.model)
            except (WorkerDied, WorkerTimeout):
                raise
            except BackendFailed as error:
                raise NotCompiled(str(error)) from error.__cause__
            size = fixed.weight_bytes
            if isinstance(executable, SupportsSize):
                size = called(self._shapes.backend, "size()", executable.size)
                if not isinstance(size, int | np.integer) or size < 0:
                    raise violation(self._shapes.backend, "size()", f"a number of bytes, got {size!r}")
            return Compiled(executable, OutputCheck(with_counts(fixed.model).info, self._shapes.precision)), size

        def alternative(key: Key) -> float | None:
            if key.graph != self._number or not key.bucket.contains(bucket, longer=longer):
                return None
            return max(1, key.bucket.batch) * max(1, key.bucket.length)

        with self._pool.using(Key(self._number, bucket), compile_one, alternative) as used:
            yield used

    def _run(self, output_names: Sequence[str], feeds: Feeds, part: Part) -> list[Any]:
        with self._using(part.bucket, longer=part.longer) as (key, compiled):
            padded = self.buckets.padded(feeds, part, key.bucket)
            results: Any = compiled.executable.run(output_names, padded)
            if problem := compiled.check.problem(output_names, results, padded):
                raise violation(self._shapes.backend, "run()", problem)
        return [self.buckets.cut(name, result, part) for name, result in zip(output_names, results, strict=True)]

    def _sample(self) -> Bucket:
        """A shape for a report on a model that has not run."""
        feeds = {}
        for spec in self._model.info.inputs:
            if spec.shape is None or spec.dtype is None:
                raise InvalidFeeds(f"The shape of input {spec.name!r} is not known. Run the session first")
            sizes = [size if isinstance(size, int) else _SAMPLE if axis else 1 for axis, size in enumerate(spec.shape)]
            feeds[spec.name] = np.ones(sizes, spec.dtype)
        return self.buckets.parts(feeds)[0].bucket


def _joined(name: str, arrays: Sequence[np.ndarray], order: np.ndarray | None) -> np.ndarray:
    """An output of all parts of a request."""
    joined: np.ndarray = np.stack(arrays).max(axis=0) if name == INDEX_ERRORS else np.concatenate(arrays)
    return joined if order is None or name == INDEX_ERRORS else joined[order]
