"""Checks that a row's outputs are the same bits in any batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isorun import Session
from isorun.types import Feeds
from isorun_conformance.checks.base import Checks, proves
from isorun_conformance.checks.concurrency import in_threads
from isorun_conformance.sample_models import Encoder, encoder

_ROWS, _LENGTH, _LONG = 40, 72, 512
_LENGTHS = (*range(1, 140), *range(149, _LONG, 13))
_BATCHES = (1, 7, _ROWS)
_MODEL = "bert-2x128"


class Determinism(Checks):
    """What ``Session(deterministic=True)`` promises, where it is declared."""

    @proves("determinism")
    def test_rows_are_the_same_bits_in_every_batch(self, precision: str) -> None:
        """In any order, beside rows of any length, with any number of threads, in each of two sessions."""
        offers, model = self.under_test.capabilities, self._encoder()
        feeds = model.feeds(batch=_ROWS, sequence=_LENGTH, mask="right")
        lengths = feeds["attention_mask"].sum(axis=1)
        random = np.random.default_rng(0)
        expected: list[list[np.ndarray]] = []
        for threads in (1, 2) if offers.sets_threads else (None, None):
            with self.under_test.open(model, precision=precision, threads=threads, deterministic=True) as session:
                tokens = session.model_info.token_outputs or ()
                by_token = [spec.name in tokens for spec in session.get_outputs()]
                for size in _BATCHES:
                    order = np.arange(_ROWS) if size == 1 else random.permutation(_ROWS)
                    rows: dict[int, list[np.ndarray]] = {}
                    for first in range(0, _ROWS, size):
                        batch = order[first : first + size]
                        width = int(lengths[batch].max())
                        fed = {name: np.ascontiguousarray(array[batch, :width]) for name, array in feeds.items()}
                        outputs = session.run(None, fed)
                        if not first:
                            _assert_same_bits(session, fed, outputs)
                        for place, row in enumerate(batch):
                            rows[int(row)] = [
                                output[place, : lengths[row]] if token else output[place]
                                for output, token in zip(outputs, by_token, strict=True)
                            ]
                    if not expected:
                        expected = [rows[row] for row in range(_ROWS)]
                    changed = [
                        row
                        for row in range(_ROWS)
                        if not all(np.array_equal(*pair) for pair in zip(rows[row], expected[row], strict=True))
                    ]
                    assert not changed, (
                        f"in batches of {size}, with threads={threads}, {len(changed)} of {_ROWS} rows are not the "
                        "bits that they are alone"
                    )

    @proves("determinism")
    def test_row_is_the_same_bits_beside_a_longer_one(self, precision: str) -> None:
        """At every length: kernels work in blocks, and a block that is cut short may be summed in another order."""
        model = self._encoder()
        feeds = model.feeds(batch=2, sequence=_LONG, mask="none")
        with self.under_test.open(model, precision=precision, deterministic=True) as session:
            tokens = session.model_info.token_outputs or ()
            by_token = [spec.name in tokens for spec in session.get_outputs()]
            for length in _LENGTHS:
                alone = session.run(None, {name: array[:1, :length] for name, array in feeds.items()})
                feeds["attention_mask"][0] = np.arange(_LONG) < length
                beside = session.run(None, feeds)
                feeds["attention_mask"][0] = 1
                for first, second, token in zip(alone, beside, by_token, strict=True):
                    row = second[:1, :length] if token else second[:1]
                    assert np.array_equal(first, row), (
                        f"a row of {length} tokens is not the bits beside one of {_LONG} that it is alone"
                    )

    def _encoder(self) -> Encoder:
        """The model of the checks, for a backend that declares determinism."""
        offers = self.under_test.capabilities
        self.under_test.require(offers.deterministic or offers.repeatable, "determinism")
        self.under_test.require(offers.dynamic_shapes, "dynamic shapes")
        return encoder(_MODEL, dynamic=True)


def _assert_same_bits(session: Session, feeds: Feeds, expected: Sequence[np.ndarray]) -> None:
    """Check that each output alone, a binding and concurrent runs are the bits of a run of all outputs."""
    names = [spec.name for spec in session.get_outputs()]
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for name in names:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    ways = [
        ("an output alone", [session.run([name], feeds)[0] for name in names]),
        ("a binding", binding.copy_outputs_to_cpu()),
        *(("a run beside others", outputs) for outputs in in_threads(lambda _: session.run(None, feeds), 16)),
    ]
    for way, outputs in ways:
        same = all(map(np.array_equal, outputs, expected))
        assert same, f"{way} is not the bits of a run of all outputs, in a batch of {len(outputs[0])}"
