"""Dynamic batching: single requests in, batches to the runtime, single results out.

:mod:`.layout` assembles a batch from requests and splits its outputs. A :class:`Batcher` accepts requests one by one,
each with a future. :class:`Results` runs an iterable of requests through a batcher and yields results in order.
"""

from isorun.session.batching.batcher import Batcher
from isorun.session.batching.layout import Layout
from isorun.session.batching.results import Results, results

__all__ = ["Batcher", "Layout", "Results", "results"]
