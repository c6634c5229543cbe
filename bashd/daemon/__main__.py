"""``python -m bashd.daemon``: the daemon's own entry point."""

import sys

from bashd.daemon.main import main

if __name__ == "__main__":
    sys.exit(main())
