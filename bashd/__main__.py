"""``python -m bashd`` is the ``bashd`` command."""

import sys

from bashd.cli.main import main

sys.exit(main())
