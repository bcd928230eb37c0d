"""``python -m isorun``: the command line."""

import sys

from isorun.cli import main

sys.exit(main())
