"""What a caller may give with a call, checked before a byte is sent. Each check raises ``BadOption``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tiedreq.core.errors import BadOption
from tiedreq.wire.fields import CONTROL
from tiedreq.wire.limits import (
    KEY_CHARS_MAX,
    METADATA_ENTRIES_MAX,
    METADATA_KEY_CHARS_MAX,
    METADATA_VALUE_CHARS_MAX,
)

Accept = Callable[[Any], object]


def _is_text(value: object, shortest: int, longest: int) -> bool:
    """True for text of that many characters that UTF-8 can carry."""
    if not isinstance(value, str) or not shortest <= len(value) <= longest:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_key(key: str | None) -> str | None:
    """An idempotency key, or None."""
    if key is not None and not _is_text(key, 1, KEY_CHARS_MAX):
        raise BadOption(f"key: {key!r} is not a text of 1 to {KEY_CHARS_MAX} characters")
    return key


def check_metadata(metadata: dict[str, str] | None) -> tuple[tuple[str, str], ...]:
    """The map as the wire carries it."""
    if metadata is None:
        return ()
    if not isinstance(metadata, dict) or len(metadata) > METADATA_ENTRIES_MAX:
        raise BadOption(f"metadata: it is not a dict of at most {METADATA_ENTRIES_MAX} entries")
    for key, value in metadata.items():
        if not _is_text(key, 1, METADATA_KEY_CHARS_MAX) or CONTROL.search(key):
            raise BadOption(f"metadata: key {key!r} is not one line of 1 to {METADATA_KEY_CHARS_MAX} characters")
        if not _is_text(value, 0, METADATA_VALUE_CHARS_MAX):
            raise BadOption(f"metadata[{key!r}]: not a text of at most {METADATA_VALUE_CHARS_MAX} characters")
    return tuple(metadata.items())


def check_accept(accept: Accept | None) -> Accept | None:
    """A function that says yes or no at once, or None."""
    if accept is not None and (not callable(accept) or inspect.iscoroutinefunction(accept)):
        raise BadOption(f"accept: {accept!r} is not a plain function of the answer")
    return accept


def check_content(content: Accept | None) -> Accept | None:
    """A function that says at once whether an item is content, or None."""
    if content is not None and (not callable(content) or inspect.iscoroutinefunction(content)):
        raise BadOption(f"content: {content!r} is not a plain function of an item")
    return content


def check_handler(handler: Callable[..., Any]) -> str:
    """The name of the method that ``bind(handler)`` calls."""
    name = getattr(handler, "__name__", None)
    if not isinstance(name, str):
        raise BadOption(f"handler: {handler!r} has no name")
    return name
