"""The service of one replica of a live run, as its environment describes it: what ``cluster.replica`` loads."""

from __future__ import annotations

import os

from cluster.compare.live_journal import Journal
from cluster.compare.live_service import lab_service
from cluster.compare.live_settings import LabSettings

__all__ = ["service"]

service = lab_service(LabSettings.from_environment(os.environ), Journal())
