"""``python -m architectures [CASE …] [--jobs 2] [--page FILE] [--results FILE]``."""

import sys

from architectures.run import main

sys.exit(main())
