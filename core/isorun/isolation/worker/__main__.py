"""A worker process, ``python -m isorun.isolation.worker SOCKET``; SOCKET is the descriptor of an inherited socket."""

from __future__ import annotations

import sys

from isorun.isolation.worker.server import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
