"""A worker process: ``python -m isorun.isolation.worker SOCKET PARENT``, started by :mod:`.process`.

SOCKET is the number of an inherited socket, PARENT the id of the process that started this one.
"""

from __future__ import annotations

import sys

from isorun.isolation.worker.server import main

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
