"""Single requests in, batches to the runtime, single results out.

:mod:`.layout` says how requests of one model become a batch, and its outputs single results. A :class:`Batcher`
takes requests one by one, each with a future for its result. :class:`Results` puts an iterable of requests through
a batcher and gives the results in the requests' order.
"""

from isorun.session.batching.batcher import Batcher
from isorun.session.batching.layout import Layout
from isorun.session.batching.results import Results, results

__all__ = ["Batcher", "Layout", "Results", "results"]
