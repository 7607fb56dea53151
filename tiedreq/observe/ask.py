"""Asks a cluster's replicas, and the clients on this host, what they remember of a call.

Replicas are asked over the links that every client has; clients over HTTP on loopback, where they show themselves.
"""

from __future__ import annotations

import http.client
import json
import math
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import trio

from tiedreq.net.client import Client
from tiedreq.observe.explain import Timeline, timeline
from tiedreq.observe.snapshot import CallView
from tiedreq.observe.stories import CALL, ReplicaStory, parse_call_id

RECENT = 2_000
ANSWER_BYTES_MAX = 16 * 1024 * 1024


class Memories:
    """Who can be asked. ``told`` collects, for people, why somebody could not say anything."""

    def __init__(self, client: Client, urls: Iterable[str], *, token: str | None, timeout: float) -> None:
        self.told: list[str] = []
        self._client = client
        self._urls = list(urls)
        self._token = token
        self._timeout = timeout

    async def explain(self, call_id: str) -> Timeline | None:
        """The timeline of a call; None when nobody remembers it."""
        call = parse_call_id(call_id)
        assert call is not None
        stories = await self._stories(f"{CALL}{call}", str(call))
        views = [view for view in await self._ask_clients(f"/calls/{call}") if view is not None]
        return timeline(str(call), views[0] if views else None, stories)

    async def recent(self) -> list[CallView]:
        """The calls that the clients remember, oldest first."""
        pictures = await self._ask_clients(f"/snapshot?recent={RECENT}")
        calls: list[CallView] = [call for picture in pictures if picture for call in picture["recent"]]
        return sorted(calls, key=lambda call: call["began"])

    async def _stories(self, about: str, call: str) -> list[ReplicaStory]:
        answers = await self._client.inquire(about, timeout=self._timeout)
        stories: list[ReplicaStory] = []
        for name, answer in answers.items():
            if answer.get("about") != about:
                self.told.append(f"{name} remembers no calls: it was started without observation")
                continue
            since = answer["since"]
            stories.append(
                ReplicaStory(
                    name=name,
                    since=math.inf if since is None else since,
                    method=answer["method"],
                    events=answer["events"],
                )
            )
        silent = sorted(set(self._client.stats()["replicas"]) - set(answers))
        self.told += [f"{name} did not answer" for name in silent]
        return stories

    async def _ask_clients(self, path: str) -> list[Any]:
        answers: list[Any] = []

        async def ask(url: str) -> None:
            try:
                answers.append(await fetch(url, path, token=self._token, timeout=self._timeout))
            except (OSError, ValueError) as error:
                self.told.append(f"the client at {url} could not be asked: {error}")

        async with trio.open_nursery() as nursery:
            for url in self._urls:
                nursery.start_soon(ask, url)
        return answers


async def fetch(url: str, path: str, *, token: str | None, timeout: float) -> Any:
    """The JSON that ``url`` shows at ``path``. Raises ``OSError`` or ``ValueError`` for whatever is not that."""
    return await trio.to_thread.run_sync(_fetch, url, path, token, timeout, abandon_on_cancel=True)


def _fetch(url: str, path: str, token: str | None, timeout: float) -> Any:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX)
        if answer.status != http.client.OK:
            raise ValueError(f"{url}{path}: status {answer.status}: {body[:200].decode('utf-8', 'replace').strip()}")
        return json.loads(body)
    except http.client.HTTPException as error:
        raise ValueError(f"{url}{path}: {type(error).__name__}: {error}") from None
    finally:
        connection.close()
