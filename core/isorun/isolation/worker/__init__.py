"""The process behind an isolated backend, and what a session talks to it with.

A session with an environment has one worker: ``python -m isorun.isolation.worker`` under the environment's interpreter.

====================  ====================================================================================
``wire``              frames over a socket: a fixed header and JSON, never pickle
``memory``            segments of shared memory, and arrays that give theirs back when they are collected
``values``            arrays and what else a model takes or gives, as JSON over segments
``failures``          exceptions as JSON, and back
``server``            the worker's own side
``process``           starting a worker, its log, its end
``client``            requests to a worker that is alive
``backend``           a worker's backends behind the contracts of :mod:`isorun.plugin.backend`; a dead one is replaced
====================  ====================================================================================

Every request is answered before the next is sent on the same channel. A channel is a socket, a thread of the
worker that serves it, and a segment for feeds; as many come to be as requests were ever in flight at once. So a
call is one message there and one back, with no thread in between.
"""
