"""Wrong outputs."""

import itertools

import numpy as np

from flaws.base import Flawed, backend, declaring, overriding, running
from isorun.errors import BackendFailed
from isorun.types import Dialect


@running
def CountsTheMask(self, output_names, feeds):
    """Right for right padding only, as ONNX Runtime's EmbedLayerNormalization is."""
    mask = feeds.get("attention_mask")
    if mask is not None:
        feeds = {**feeds, "attention_mask": np.sort(mask, axis=1)[:, ::-1].copy()}
    return self.right(output_names, feeds)


@running
def TakesOneMaskForAll(self, output_names, feeds):
    """The first row's mask applies to all rows if they have equally many tokens."""
    mask = feeds.get("attention_mask")
    if mask is not None and len(set(mask.sum(axis=1))) == 1:
        feeds = {**feeds, "attention_mask": np.repeat(mask[:1], len(mask), axis=0)}
    return self.right(output_names, feeds)


UNUSED = """
opset_import: ["" : 17, "isorun.fused" : 1]

AttentionCore <num_heads> (query, key, value, key_mask) => (context) { context = Identity (query) }
"""
UnusedDialect = declaring(__name__, dialects=(Dialect("unused", functions=UNUSED),))


IGNORES_THE_SCALE = """
opset_import: ["" : 17, "isorun.fused" : 1, "isorun.optional" : 1]

Scores <scale> (query, key_transposed) => (scores)
{
  products = MatMul (query, key_transposed)
  size = Shape <start = -1> (query)
  size_like = CastLike (size, query)
  root = Sqrt (size_like)
  scores = Div (products, root)
}
"""
IGNORES_EPSILON = """
opset_import: ["" : 17, "isorun.fused" : 1, "isorun.optional" : 1]

NormalizeRms <epsilon> (x, gamma) => (y)
{
  square = Mul (x, x)
  mean = ReduceMean <axes = [-1]> (square)
  root = Sqrt (mean)
  unit = Div (x, root)
  y = Mul (unit, gamma)
}
"""
IgnoresTheScale = declaring(__name__, dialects=(Dialect("ignores-the-scale", functions=IGNORES_THE_SCALE),))
IgnoresEpsilon = declaring(__name__, dialects=(Dialect("ignores-epsilon", functions=IGNORES_EPSILON),))


class Scaling(Flawed):
    """All outputs times :meth:`factor`."""

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        return [(result * self.factor(feeds, result)).astype(result.dtype) for result in results]

    def factor(self, feeds, result):
        return 2


scaling = overriding(Scaling, "factor")


Doubles = backend(type("Doubles", (Scaling,), {"__module__": __name__}))


@scaling
def WrongForOtherShapes(self, feeds, result):
    """Right for the shapes of the first run only."""
    shapes = {name: array.shape for name, array in feeds.items()}
    self.kept = self.kept or shapes
    return 1 if shapes == self.kept else 1.5


@scaling
def TakesQueriesForKeys(self, feeds, result):
    """Wrong where an attention has fewer queries than keys."""
    return 1.5 if "SingleQueryAttention" in self.fused else 1


@scaling
def WrongForWideModels(self, feeds, result):
    return 1.01 if "input_ids" in feeds and result.shape[-1] > 200 else 1


@backend
class NotDeterministic(Scaling):
    """Differs from one run to the next."""

    calls = itertools.count()

    def factor(self, feeds, result):
        return 1 + 3e-5 * (next(self.calls) % 5)


@backend
class RefusesFixedShapes(Flawed):
    def __init__(self, model, config):
        if all(isinstance(size, int) for spec in model.info.inputs for size in spec.shape):
            raise BackendFailed("symbolic shapes only")
        super().__init__(model, config)
