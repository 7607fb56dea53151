"""What is to be remembered and shown of a replica or a client: ``Observe``, for ``serve()`` and ``connect()``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tiedreq.core.checks import check_count
from tiedreq.core.errors import BadOption
from tiedreq.net.addresses import parse_address

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

RECORDS_MAX = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe:
    """Options of observation. ``serve(observe=None)`` and ``connect(observe=None)`` observe nothing.

    ``records``: how many copies a replica keeps for ``tiedreq explain``. ``calls``: how
    many calls a client keeps. Both are rings: the newest push out the oldest. ``listen`` (``HOST:PORT``, port 0: any
    free one): show health, metrics and the snapshot over HTTP there, which takes the extra ``metrics``. ``announce``: a
    client that shows itself leaves a file in this directory, where ``tiedreq explain`` finds it. ``tracing``: make
    OpenTelemetry spans with the program's tracer provider (True) or this one; takes the extra ``otel``. Raises
    ``BadOption``.
    """

    records: int = 16_384
    calls: int = 1_024
    listen: str | None = None
    announce: Path | None = None
    tracing: TracerProvider | bool = False

    def __post_init__(self) -> None:
        check_count("records", self.records, 1, RECORDS_MAX)
        check_count("calls", self.calls, 1, RECORDS_MAX)
        if self.listen is not None:
            try:
                parse_address(self.listen)
            except BadOption as error:
                raise BadOption(f"observe.listen: {error}") from None
        elif self.announce is not None:
            raise BadOption("observe.announce: there is nothing to announce without listen")
