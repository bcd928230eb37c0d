"""Reduction of a model that a runtime computes wrongly to its smallest part: what its authors need in a report.

The search is delta debugging (:mod:`isorun.reduction.minimize`) over the nodes of a graph. Every candidate gets the
values that the whole model computes at its borders, and runs in a child process, which a runtime may crash.
"""

from isorun.reduction.search import Reduction, Request, reduce

__all__ = ["Reduction", "Request", "reduce"]
