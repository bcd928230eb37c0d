"""Wrong outputs at some shapes, and for some values."""

import numpy as np

from flaws.accuracy import Scaling
from flaws.base import backend, returning, running


def wrong_where(condition, factor=1.5):
    """A backend whose outputs are scaled where a condition on the feeds holds."""

    class Wrong(Scaling):
        def factor(self, feeds, result):
            return factor if condition(next(iter(feeds.values()))) else 1

    return backend(Wrong)


WrongBeyondEightRows = wrong_where(lambda first: first.shape[0] > 8)
WrongBeyond64Rows = wrong_where(lambda first: first.shape[0] > 64)
WrongAtThirteenRows = wrong_where(lambda first: first.shape[0] == 13)
WrongBeyond1024Rows = wrong_where(lambda first: first.shape[0] > 1024)
WrongBeyond64Tokens = wrong_where(lambda first: first.shape[-1] > 64 and first.dtype == np.int64)
WrongBeyond512Tokens = wrong_where(lambda first: first.shape[-1] > 512 and first.dtype == np.int64)
WrongAt512Tokens = wrong_where(lambda first: first.shape == (1, 512) or first.shape == (2, 512))
WrongForOneRowOfOneToken = wrong_where(lambda first: first.shape == (1, 1))
WrongForBatchesOf64 = wrong_where(lambda first: first.shape[0] == 64)
WrongForTheLastToken = wrong_where(lambda first: first.dtype == np.int64 and first.max() == 98)
WrongForEqualTokens = wrong_where(lambda first: first.dtype == np.int64 and first.min() == first.max())
WrongForLargeFeeds = wrong_where(lambda first: first.dtype == np.float32 and np.abs(first).max() > 1e6)
FlushesSmallFeeds = wrong_where(lambda first: first.dtype == np.float32 and np.abs(first).max() < 1e-20, factor=0)
WrongForFeedsOfSomeTens = wrong_where(lambda first: first.dtype == np.float32 and 10 < np.abs(first).max() < 1000)
HalfPrecisionInLargeBatches = wrong_where(lambda first: first.shape[0] > 32, factor=1 + 4e-4)


SpreadsNaN = returning(lambda results: [array * np.nan if np.isnan(array).any() else array for array in results])
ReplacesNaN = returning(lambda results: [np.nan_to_num(array) for array in results])
ClipsInfinity = returning(
    lambda results: [np.nan_to_num(array, nan=np.nan) if array.dtype == np.float32 else array for array in results]
)


@running
def SpoiledByAnEmptyBatch(self, output_names, feeds):
    """Wrong after a batch without rows."""
    results = self.right(output_names, feeds)
    self.kept = self.kept or not all(result.size for result in results)
    return [result + 1 for result in results] if self.kept else results


@running
def NaNForMaskedRows(self, output_names, feeds):
    """As fp16 kernels that add minus infinity, unless padding is removed."""
    results = self.right(output_names, feeds)
    if "attention_mask" in feeds:
        for result in results:
            result[~feeds["attention_mask"].any(axis=1)] = np.nan
    return results


@running
def WrongWhenRowsShrink(self, output_names, feeds):
    """Its buffers grow, and what is left in them is read."""
    rows = len(next(iter(feeds.values())))
    self.kept = max(self.kept or 0, rows)
    return [result * (1.5 if rows < self.kept else 1) for result in self.right(output_names, feeds)]
