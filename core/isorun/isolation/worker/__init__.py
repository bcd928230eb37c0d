"""The process that runs an isolated backend, and the session's side of it.

A session with an environment has one worker: ``python -m isorun.isolation.worker`` under the environment's interpreter.

A channel is a socket, a thread of the worker that serves it, and two segments, for feeds and for results. Each request
is answered before the next is sent on the same channel; a channel is opened when more requests are in flight than
there are channels. So a call is one message each way, with no thread in between.
"""
