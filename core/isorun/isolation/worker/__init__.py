"""The process that runs an isolated backend, and the session's side of it.

A session with an environment has one worker: ``python -m isorun.isolation.worker`` under the environment's interpreter.

====================  ====================================================================================
``wire``              frames over a socket: a fixed header and JSON, never pickle
``memory``            segments of shared memory
``values``            model inputs and outputs as JSON, arrays in segments
``failures``          exceptions as JSON, and back
``server``            the worker's side
``process``           starting a worker, its log, how it ended
``channel``           one socket with its segments
``client``            requests to a running worker
``backend``           a worker's backends as :class:`isorun.plugin.backend.Backend`; a dead worker is replaced
====================  ====================================================================================

A channel is a socket, a thread of the worker that serves it, and two segments, for feeds and for results. Each request
is answered before the next is sent on the same channel; a channel is opened when more requests are in flight than
there are channels. So a call is one message each way, with no thread in between.
"""
