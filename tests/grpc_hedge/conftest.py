"""gRPC's own log stays quiet: it tells of every server that a test ends."""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
