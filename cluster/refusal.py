"""The error that says no to an operator."""

from __future__ import annotations


class ControlRefused(Exception):
    """What was asked for is well-formed but can't be done now; its text is one line."""
