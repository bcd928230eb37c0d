"""The same application on Ray Serve: replicas of it on the machines of a cluster."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from isorun.errors import InvalidArgument, IsorunError
from isorun_serve.opening import Named
from isorun_serve.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

NAME = "isorun"
_REQUESTS_OF_A_REPLICA = 16  # open at once, above which another one is started
_DRAIN_SECONDS = 60


def scaling(replicas: str) -> dict[str, Any]:
    """``N`` or ``MIN:MAX`` as arguments of a deployment.

    Raises:
        InvalidArgument: it is neither.
    """
    low, colon, high = replicas.partition(":")
    numbers = [low, high] if colon else [low]
    if not all(number.isdecimal() for number in numbers) or int(numbers[-1]) < max(1, int(low)):
        raise InvalidArgument(f"Invalid --replicas {replicas!r}: expected N or MIN:MAX")
    if not colon:
        return {"num_replicas": int(low)}
    limits = {"min_replicas": int(low), "max_replicas": int(high)}
    return {"autoscaling_config": {**limits, "target_ongoing_requests": _REQUESTS_OF_A_REPLICA}}


def deployment(
    models: Sequence[Named],
    session_options: Mapping[str, Any],
    settings: Settings,
    *,
    replicas: str = "1",
    cpus: float = 1,
    **open_options: Any,
) -> Any:
    """The application for ``ray.serve.run``.

    Args:
        models: the models. Each replica opens all of them; paths must exist on every machine.
        session_options: arguments of :class:`isorun.Session`.
        settings: the limits, of each replica.
        replicas: their number, or ``MIN:MAX`` to start and stop them by the number of open requests.
        cpus: of each replica, which has as many threads.
        open_options: other arguments of :func:`isorun_serve.opening.open_models`.

    Raises:
        InvalidArgument: ``replicas`` is invalid.
        IsorunError: Ray is not installed.
    """
    amount = scaling(replicas)
    try:
        from ray import serve
    except ModuleNotFoundError as error:
        raise IsorunError("--ray needs Ray. Install it with `pip install 'isorun[ray,serve]'`") from error

    def build() -> FastAPI:
        """The application of a replica, warm: Ray sends no request before."""
        from isorun.cli.models import model_path
        from isorun.ray import assigned_threads
        from isorun.system.cache import Cache
        from isorun_serve.app import create_app
        from isorun_serve.opening import open_models

        cache = Cache()
        paths = {served.name: model_path(served.model, cache) for served in models}
        threads = {key: value for key, value in session_options.items() if key != "threads" or value is not None}
        opened = open_models(models, paths, {**assigned_threads(), **threads}, **open_options)
        if settings.warmup:
            opened.warm_up(measure=settings.measure)
        opened.accepting = opened.ready = True
        # Ray sends each request to any replica, whose counts would look like one that is reset again and again.
        replica = serve.get_replica_context().replica_id.unique_id
        return create_app(opened, replace(settings, warmup=False), replica=replica)

    deployed = serve.deployment(
        name=NAME,
        ray_actor_options={"num_cpus": cpus},
        max_ongoing_requests=settings.max_requests,
        graceful_shutdown_timeout_s=_DRAIN_SECONDS,
        **amount,
    )
    return deployed(serve.ingress(build)()).bind()


def run(application: Any, host: str, port: int) -> None:
    """Deploy on the cluster that this machine is part of, or else on one of its own, until SIGTERM or Ctrl-C.

    Then the replicas stop once they have answered what they accepted.

    Raises:
        InvalidArgument: ``port`` is 0.
        IsorunError: Ray cannot listen there, or a replica cannot open the models.
    """
    if port == 0:
        raise InvalidArgument("--port cannot be 0 with --ray: Ray does not report which one it listens on. Name one")
    from ray import serve

    from isorun.cli import signals

    try:
        serve.start(http_options={"host": host, "port": port})
        signals.handle(signal.default_int_handler)  # Ray's own handler, set by now, exits at once
        serve.run(application, name=NAME, route_prefix="/", blocking=True)
    except KeyboardInterrupt:
        serve.delete(NAME)
    except RuntimeError as error:  # with the traceback of another process, which ends with what is wrong
        reason = str(error).strip().rpartition("\n")[2].rstrip(".")
        raise IsorunError(
            f"Ray Serve cannot serve on {host}, port {port}: {reason}. Ray's log above has more"
        ) from error
