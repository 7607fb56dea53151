"""Listen to a source for as long as somebody wants to know, whatever the source does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

import trio

from tiedreq.discovery.members import Discovery, Members

logger = logging.getLogger("tiedreq.discovery")

RETRY_FIRST_SECONDS, RETRY_MAX_SECONDS = 0.5, 30.0


async def follow(discovery: Discovery, take: Callable[[Members], None], *, cluster: str | None = None) -> None:
    """Give each set to ``take``, until cancelled or until the source has no more to say.

    A source that fails is asked anew, with growing pauses. Sets of another cluster than ``cluster`` are passed over.
    """
    pause, warned = RETRY_FIRST_SECONDS, False
    while True:
        try:
            async with AsyncExitStack() as stack:
                sets = aiter(discovery)
                close = getattr(sets, "aclose", None)
                if close is not None:
                    stack.push_async_callback(close)
                async for members in sets:
                    pause = RETRY_FIRST_SECONDS
                    if cluster is None or members.cluster in (None, cluster):
                        take(members)
                    elif not warned:
                        warned = True
                        logger.warning(
                            "members stay as they are: %r speaks of cluster %r now, not %r",
                            discovery,
                            members.cluster,
                            cluster,
                        )
            return
        except Exception as error:
            logger.error("members stay as they are: %r failed", discovery, exc_info=error)
        await trio.sleep(pause)
        pause = min(2 * pause, RETRY_MAX_SECONDS)
