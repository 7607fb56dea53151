"""The web dashboard of ``cluster.up``: what the cluster does, live, and controls for who holds the control token.

``feed`` turns what replicas and traffic report into what a page shows, ``races`` the timelines of single calls, ``app``
serves them, behind ``guard`` (who may ask) and ``serving`` (how much of it). The page itself is in ``static``; its
charts are drawn by uPlot (``static/vendor``, MIT), and it loads nothing from elsewhere. Needs the extra ``dashboard``;
only ``app`` and ``serving`` import it. docs/dashboard.md says what is to be seen.
"""

from __future__ import annotations

from importlib.util import find_spec

NEEDED = ("starlette", "hypercorn")


def missing() -> list[str]:
    """The packages of the extra that are not installed."""
    return [name for name in NEEDED if find_spec(name) is None]
