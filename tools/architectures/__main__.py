"""``python -m architectures [CASE …] [--workers 2] [--minutes M] [--out FILE] [--page FILE]``."""

import sys

from architectures.run import main

sys.exit(main())
