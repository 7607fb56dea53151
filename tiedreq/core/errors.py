"""Errors that the pure cores raise, and the roots of the public error tree.

An error says who is at fault: ``BadOption`` and ``UnknownTransition`` are local mistakes, ``RemoteViolation`` is the
other side's. ``tiedreq.errors`` adds the errors that need a network.
"""

from __future__ import annotations


class TiedreqError(Exception):
    """The root of every error that tiedreq raises on purpose."""


class UsageError(TiedreqError):
    """The program asked for something that cannot be done as asked; nothing was sent."""


class BadOption(UsageError, ValueError):
    """An option or an argument is outside its limits. The message names the field and the limit."""


class UnknownTransition(TiedreqError):
    """An event that a state's table does not list. The core's state is unchanged."""


class RemoteViolation(TiedreqError):
    """The other side broke the protocol. Its link is to be closed with this reason; nothing else is touched."""
