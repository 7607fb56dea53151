"""``python -m tiedreq`` is the console command ``tiedreq``."""

import sys

from tiedreq.cli import main

sys.exit(main())
