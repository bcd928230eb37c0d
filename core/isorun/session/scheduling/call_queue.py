"""The requests that wait, by call: calls take turns, and requests of different calls may share a batch.

The requests of a call are served as if they arrived one every :data:`_LAG` seconds. While little waits, calls thus take
turns, a request each, and a call of many requests delays others by its share only. The more waits, the closer the order
is to that of arrival: others overtake a call of many requests only if they arrive within a bounded time of it.

Nothing here is thread-safe: :class:`isorun.session.scheduling.lanes.Lanes` holds its lock during every call. A handler
of a signal may raise during a call on the main thread. Python runs handlers after calls of functions, and where loops
and functions of Python begin, so what changes is computed first, then stored in statements without calls.
"""

from __future__ import annotations

import heapq
import itertools
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from isorun.session.scheduling.calls import Batching, Call, Request, Turn

_LAG = 0.1  # seconds
_PATIENCE = 1.0  # seconds for which large calls are rejected while small ones fill the queue
_NOTHING = (0, float("inf"))  # the largest call that was rejected, and since when such calls have been


class CallQueue:
    """A bounded queue of calls.

    A batch begins with the first request of the call whose turn it is, and holds those of other calls in turn. Single
    requests are thus served in order of arrival. A stream has one batch in its turn, and is last then.

    Args:
        limit: the maximum number of waiting rows, over the requests of bounded calls.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bounded = 0
        self._refused = _NOTHING
        self._tokens: Counter[Batching] = Counter()
        self._turns: list[Turn] = []  # of every call, sorted
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._turns)

    def admits(self, rows: int) -> bool:
        """Whether a bounded call of so many rows is admitted.

        An empty queue admits a call of any size. Small calls may keep the queue from ever having room for a large one,
        which is admitted after a while, one at a time.
        """
        if not self._bounded or self._bounded + rows <= self._limit:
            return True
        if rows == 1:
            return False
        largest, since = self._refused
        now = time.monotonic()
        self._refused = max(largest, rows), min(since, now)
        return self._bounded <= self._limit and now - since >= _PATIENCE

    def put(self, call: Call, requests: Sequence[Request]) -> bool:
        """Add requests to a call: all of them, or none and return ``False`` if they exceed the limit."""
        rows = sum(request.rows for request in requests) if call.bounded else 0
        if call.bounded:
            if not self.admits(rows):
                return False
            if rows >= self._refused[0]:
                self._refused = _NOTHING
        for place, request in enumerate(requests):
            request.call, request.number, request.turn = call, next(self._numbers), request.arrived + place * _LAG
        added = {request.number: request for request in requests}
        length = sum(request.length for request in requests)
        call.hurry = False
        first = None if call.waiting else call.turn_of(requests[0])
        # Once the first of these has changed something, no handler runs before the last one has.
        self._tokens[call.batching] += length
        self._bounded += rows
        call.waiting |= added
        if first is not None:
            insort(self._turns, first)
        return True

    def take(self, now: float, may_run: Callable[[Call], bool], *, all_due: bool = False) -> list[Request]:
        """Remove the next batch; empty if nothing waits, or if waiting requests may still be joined by others."""
        for _, _, call in self._turns:
            if may_run(call) and (all_due or self._is_due(call, now)):
                break
        else:
            return []
        requests = _of_similar_length(call) if call.batching.stream else self._in_turn(call)
        if call.batching.stream:
            self._remove_turn(call)
            call.last_turn = now
            insort(self._turns, call.turn())
        for request in requests:
            self.remove(request.call, request.number)
        return requests

    def remove(self, call: Call, number: int) -> bool:
        """Remove a request; ``False`` if it does not wait any more."""
        request = call.waiting.get(number)
        if request is None:
            return False
        rows = request.rows if call.bounded else 0
        first, second = [*itertools.islice(call.waiting.values(), 2), None][:2]
        following = call.turn_of(second) if first is request and second is not None else None
        place = bisect_left(self._turns, call.turn())
        # From here to the end of insort(), no handler runs.
        self._bounded -= rows
        self._tokens[call.batching] -= request.length
        del call.waiting[number]
        if first is request:
            del self._turns[place]
        if following is not None:
            insort(self._turns, following)
        if not self._tokens[call.batching] and not call.waiting:
            del self._tokens[call.batching]
        return True

    def next_due(self, may_run: Callable[[Call], bool]) -> float | None:
        """When the first call is due; ``None`` if none may run."""
        return min((call.due() for _, _, call in self._turns if may_run(call)), default=None)

    def requests(self) -> list[Request]:
        """All that wait."""
        return [request for _, _, call in self._turns for request in call.waiting.values()]

    def _remove_turn(self, call: Call) -> None:
        del self._turns[bisect_left(self._turns, call.turn())]

    def _is_due(self, call: Call, now: float) -> bool:
        batching = call.batching
        return not batching.max_wait or call.hurry or self._tokens[batching] >= batching.enough or call.due() <= now

    def _in_turn(self, first: Call) -> list[Request]:
        """Requests of all calls in turn, while their lengths sum to no more than the budget."""
        oldest = next(iter(first.waiting.values()))
        if not oldest.length:  # it never shares a batch
            return [oldest]
        requests: list[Request] = []
        tokens = 0
        for request in self._like(first, oldest.kind):
            tokens += request.length
            if requests and tokens > first.batching.max_tokens:
                break
            requests.append(request)
        return requests

    def _like(self, first: Call, kind: tuple[Any, ...]) -> Iterator[Request]:
        """The requests of a kind that may share a batch with a call's oldest one, that one first, then in turn."""
        others = (call for _, _, call in self._turns if call is not first and call.batching == first.batching)
        heads: list[tuple[float, int, Request, Iterator[Request]]] = []

        def advance(requests: Iterator[Request]) -> None:
            for request in requests:
                if request.kind == kind:
                    heapq.heappush(heads, (request.turn, request.number, request, requests))
                    break

        advance(iter(first.waiting.values()))
        later = None
        while heads:
            *_, request, rest = heapq.heappop(heads)
            yield request
            advance(rest)
            while (later := later or next(others, None)) and (not heads or later.turn()[:2] <= heads[0][:2]):
                advance(iter(later.waiting.values()))
                later = None


def _of_similar_length(call: Call) -> list[Request]:
    """The oldest request and those closest to it in length, within the budget as padded."""
    oldest = next(iter(call.waiting.values()))
    alike = [request for request in call.waiting.values() if request.kind == oldest.kind]
    alike.sort(key=lambda request: request.length)
    most = call.batching.max_tokens
    low = high = alike.index(oldest)
    while True:
        shorter = oldest.length - alike[low - 1].length if low > 0 else None
        longer = alike[high + 1].length - oldest.length if high + 1 < len(alike) else None
        count = high - low + 2
        if longer is not None and count * alike[high + 1].length > most:
            longer = None
        if shorter is not None and count * alike[high].length > most:
            shorter = None
        if shorter is not None and (longer is None or shorter <= longer):
            low -= 1
        elif longer is not None:
            high += 1
        else:
            return alike[low : high + 1]
