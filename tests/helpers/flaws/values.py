"""Wrong where something depends on values: indices, conditions, shapes, types."""

from dataclasses import replace

import numpy as np

from flaws.base import HONEST, Flawed, backend, declaring, reading, returning, running

KnowsOneOpset = declaring(__name__, faults="")  # as ONNX's reference evaluator itself, for a softmax


@backend
class ClampsIndices(Flawed):
    """It declares that it checks them."""

    capabilities = replace(HONEST, checks_indices=True)

    def run(self, output_names, feeds):
        if {"i", "j"} <= feeds.keys():
            feeds = {**feeds, "j": np.clip(feeds["i"] + feeds["j"], -5, 4) - feeds["i"]}
        return self.right(output_names, feeds)


@backend
class ScattersInsideOnly(Flawed):
    """It declares that it checks indices, and leaves out what is outside."""

    capabilities = replace(HONEST, checks_indices=True)

    def run(self, output_names, feeds):
        if b"Scatter" in self.path.read_bytes():
            feeds = {**feeds, "j": np.where(np.abs(feeds["i"] + feeds["j"]) > 4, -feeds["i"], feeds["j"])}
        return self.right(output_names, feeds)


@backend
class IsZeroAfterAnIndexError(Flawed):
    """It declares that it checks indices, and that a failure leaves no trace."""

    capabilities = replace(HONEST, checks_indices=True, usable_after_failure=True)
    failed = False

    def run(self, output_names, feeds):
        failed, self.failed = self.failed, True
        results = self.right(output_names, feeds)
        self.failed = False
        return [result * 0 for result in results] if failed else results


@running
def KeepsTheFirstBranch(self, output_names, feeds):
    """Conditions and numbers of rank 0 are those of the first run."""
    first = {name: array for name, array in feeds.items() if not array.ndim}
    self.kept = self.kept or first
    return self.right(output_names, {**feeds, **self.kept})


@running
def KeepsTheFirstOutputShape(self, output_names, feeds):
    """It allocates outputs by the shapes of the feeds."""
    results = self.right(output_names, feeds)
    self.kept = self.kept or {}
    key = tuple(array.shape for array in feeds.values())
    sizes = self.kept.setdefault(key, [result.shape for result in results])
    return [np.resize(result, size) for result, size in zip(results, sizes, strict=True)]


def through(wide, narrow):
    """A backend that computes one type in another."""
    return returning(
        lambda results: [array.astype(narrow).astype(wide) if array.dtype == wide else array for array in results]
    )


AddsInDouble = through(np.int64, np.float64)
AddsDoubleInFloat = through(np.float64, np.float32)
MultipliesDoubleInFloat = returning(
    lambda results: [
        array.astype(np.float32).astype(np.float64) if array.dtype == np.float64 and number else array
        for number, array in enumerate(results)
    ]
)
PadsEmptyFeeds = reading(
    lambda feeds: {
        name: np.zeros((len(array), 1), np.float32) if array.shape[1:] == (0,) else array
        for name, array in feeds.items()
    }
)


@running
def OverflowsInExponentials(self, output_names, feeds):
    """As a softmax that does not subtract the maximum."""
    out_of_range = any(array.dtype == np.float32 and (array > 88).any() for array in feeds.values())
    return [result * np.float32(np.nan if out_of_range else 1) for result in self.right(output_names, feeds)]


@running
def ClipsNothing(self, output_names, feeds):
    """It ignores limits that are attributes, as before opset 11."""
    unclipped = b"Clip" in self.path.read_bytes()
    return [feeds["x"].copy()] if unclipped else self.right(output_names, feeds)


@running
def LeavesEmptySums(self, output_names, feeds):
    """Memory that nothing is added to is not set to zero."""
    results = self.right(output_names, feeds)
    if any(array.shape[1:] == (0,) for array in feeds.values()):
        results[list(output_names).index("product")] += 1
    return results


@running
def FindsTheLastMaximum(self, output_names, feeds):
    """Of equal values."""
    results = self.right(output_names, feeds)
    if "most" in output_names:
        results[list(output_names).index("most")] = 8 - feeds["x"][:, ::-1].argmax(axis=1)
    return results


@running
def NaNForNothingButPadding(self, output_names, feeds):
    """As a softmax over no key of any row."""
    nothing = "attention_mask" in feeds and not feeds["attention_mask"].any()
    return [result * np.float32(np.nan if nothing else 1) for result in self.right(output_names, feeds)]
