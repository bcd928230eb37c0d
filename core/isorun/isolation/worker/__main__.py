"""A worker: ``python -m isorun.isolation.worker SOCKET PARENT``, where SOCKET is the number of an inherited socket and PARENT
the id of the process that started this one. :mod:`isorun.isolation.worker.process` calls it."""

from __future__ import annotations

import sys

from isorun.isolation.worker.server import main

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
