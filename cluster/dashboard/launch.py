"""The dashboard of a launcher: its address is known before the replicas start, what serves it is loaded afterwards.

From the moment that the address is known connections are accepted by the kernel; they are answered as soon as the web
framework is loaded, which does not hold up the replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from cluster.config import UpConfig
from cluster.dashboard import missing
from cluster.dashboard.feed import Feed
from cluster.dashboard.guard import Rules
from cluster.pasting import control_line
from tiedreq.net.addresses import Address
from tiedreq.net.listeners import bound_address, open_listeners

log = logging.getLogger("dashboard")
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class DashboardUnavailable(Exception):
    """It can't be had; the text is one line. ``fatal``: what was asked for by name, so the launcher can't go on."""

    def __init__(self, text: str, *, fatal: bool) -> None:
        super().__init__(text)
        self.fatal = fatal


class Dashboard:
    """A dashboard that listens. ``url`` is where people find it."""

    def __init__(self, config: UpConfig, listeners: list[trio.SocketListener]) -> None:
        host, port = bound_address(listeners[0])
        self.url = f"http://{Address(_WILDCARDS.get(host, host), port)}/"
        self._config = config
        self._listeners = listeners

    def close(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.socket.close()

    async def run(self, token: str, make_feed: Callable[[], Feed], tell: Callable[[str], None]) -> None:
        """Load what serves it, and serve it until cancelled. Should it fail, ``tell`` is told; the cluster goes on."""
        try:
            await self._run(token, make_feed)
        except Exception as error:
            log.exception("the dashboard has failed")
            tell(f"the dashboard has failed, and the cluster goes on without it: {type(error).__name__}")
            self.close()

    async def _run(self, token: str, make_feed: Callable[[], Feed]) -> None:
        await trio.to_thread.run_sync(_load)
        from cluster.dashboard.app import make_app
        from cluster.dashboard.serving import serve_dashboard

        rules = Rules(token, self._config.host, self._config.dashboard_remote_control)
        feed = make_feed()
        async with trio.open_nursery() as nursery:
            app = make_app(feed, feed.operator, rules, nursery, hint=control_line(self._config, "dashboard"))
            nursery.start_soon(feed.run)
            nursery.start_soon(serve_dashboard, app, self._listeners)


async def open_dashboard(config: UpConfig) -> Dashboard | None:
    """Listen, if a dashboard is wanted. Raises ``DashboardUnavailable``."""
    if not config.dashboard:
        return None
    lacking = missing()
    if lacking:
        need = f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed"
        raise DashboardUnavailable(f"no dashboard: {need}; install tiedreq[dashboard]", fatal=False)
    address = Address(config.host, config.dashboard_port or 0)
    try:
        return Dashboard(config, await open_listeners(address))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        text = f"dashboard: can't listen at {address.host} port {address.port}: {reason}"
        raise DashboardUnavailable(text, fatal=True) from None


def _load() -> None:
    import cluster.dashboard.app
    import cluster.dashboard.serving  # noqa: F401
