"""A user's values to bytes and back: what handlers take and return, opaque to everything between.

What can be packed: None, bool, int of at most 64 bits, float (NaN and infinities too), str, bytes, list and tuple
(both come back as a list), dict with keys that are None, bool, int, float, str or bytes. Instances of subclasses are
packed as what they derive from. Encoding refuses, with a path to the culprit, whatever decoding under the same limits
would refuse; decoding never raises anything but ``RemoteViolation`` and builds nothing before the structure is known
to be within the limits. The size of an encoded value is the caller's to compare with what the other side takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tiedreq.core.errors import RemoteViolation
from tiedreq.wire.limits import DEFAULT_LIMITS, WireLimits
from tiedreq.wire.packing import PACK_ERRORS, UNPACK_ERRORS, ExtType, Unpackable, packers, refuse_extension, unpackb
from tiedreq.wire.structure import check_structure

_KEYS = frozenset({type(None), bool, int, float, str, bytes})
_ARRAYS = frozenset({list, tuple})
_PLAIN = _KEYS | _ARRAYS | {dict}
_KEY_BASES = (int, float, str, bytes)
_BASES = (*_KEY_BASES, list, tuple, dict)
_INT_MIN = -(2**63)
_INT_MAX = 2**64 - 1
_PATH_CHARS_MAX = 200
_BIN_HEADERS = {0xC4: 2, 0xC5: 3, 0xC6: 5}


def encode_payload(value: Any, limits: WireLimits = DEFAULT_LIMITS, *, what: str = "value") -> bytes:
    """The bytes of ``value``. ``what`` names it in errors, as in ``args["a"][3]``.

    Raises ``Unpackable``.
    """
    if type(value) not in _KEYS:
        _check_value(value, limits, what)
    try:
        return packers.pack(value)
    except PACK_ERRORS as error:
        culprit = next(_culprits(value, what), f"{what} can't be packed: {error}")
    raise Unpackable(culprit)


def decode_payload(data: bytes, limits: WireLimits = DEFAULT_LIMITS, *, what: str = "payload") -> Any:
    """The value that was encoded; arrays come as lists. ``what`` names it in errors. Raises ``RemoteViolation``."""
    if len(data) > limits.payload_bytes_max:
        raise RemoteViolation(f"{what} of {len(data)} bytes; the limit is {limits.payload_bytes_max}")
    header = _BIN_HEADERS.get(data[0]) if data else None
    if header is not None and len(data) >= header and len(data) == header + int.from_bytes(data[1:header], "big"):
        return data[header:]  # nothing but bytes, as many as it says
    check_structure(data, depth_max=limits.depth_max, items_max=limits.items_max, what=what)
    try:
        return unpackb(
            data, strict_map_key=False, object_pairs_hook=_distinct, max_ext_len=0, ext_hook=refuse_extension
        )
    except UNPACK_ERRORS as error:
        problem = type(error).__name__
    raise RemoteViolation(f"{what} is not valid msgpack ({problem})")


def _distinct(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dict, unless keys are repeated (1, 1.0 and True are one key here). Arrays and maps as keys are TypeErrors."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("repeated key")
    return result


def _check_value(value: Any, limits: WireLimits, what: str) -> None:
    """Level by level: types, keys, depth and number of items. Numbers and text are the packer's to check."""
    level = [value]
    depth = items = 0
    while True:
        kinds = set(map(type, level))
        if kinds <= _KEYS:
            return
        if not kinds <= _PLAIN and not all(map(_packable, kinds)):
            raise Unpackable(next(_culprits(value, what)))
        inner: list[Any] = []
        nested = False
        for container in level:
            if isinstance(container, dict):
                items += 2 * len(container)
                keys = set(map(type, container))
                if not keys <= _KEYS and not all(issubclass(kind, _KEY_BASES) for kind in keys - _KEYS):
                    raise Unpackable(next(_culprits(value, what)))
                more: Any = container.values()
            elif isinstance(container, (list, tuple)):
                items += len(container)
                more = container
            else:
                continue
            nested = True
            if items > limits.items_max:
                raise Unpackable(f"{what} holds more than {limits.items_max} values")
            inner.extend(more)
        depth += nested
        if depth > limits.depth_max:
            raise Unpackable(f"{what} is nested more than {limits.depth_max} deep, or contains itself")
        level = inner


def _packable(kind: type) -> bool:
    return kind in _PLAIN or (issubclass(kind, _BASES) and not issubclass(kind, ExtType))


def _culprits(value: Any, path: str) -> Iterator[str]:
    """What is wrong with each part of ``value`` that can't be packed. Depth and size are known to be in order."""
    kind = type(value)
    if not _packable(kind):
        yield f"{path}: {_a(kind)} can't be packed; None, bool, int, float, str, bytes, list, tuple and dict can"
    elif isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            yield f"{path}: an int of {value.bit_length()} bits can't be packed; 64 is the limit"
    elif isinstance(value, str):
        if not _is_unicode(value):
            yield f"{path}: a str with a lone surrogate can't be packed"
    elif isinstance(value, dict):
        for key, inner in value.items():
            if type(key) not in _KEYS and not isinstance(key, _KEY_BASES):
                yield f"{path}: {_a(type(key))} can't be a key; None, bool, int, float, str and bytes can"
            else:
                yield from _culprits(key, f"a key of {path}")
                yield from _culprits(inner, _below(path, key))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _culprits(inner, _below(path, index))


def _below(path: str, key: Any) -> str:
    shown = '"' + key.replace('"', '\\"') + '"' if isinstance(key, str) else repr(key)
    if len(shown) > 40:
        shown = shown[:36] + "..." + shown[-1]
    longer = f"{path}[{shown}]"
    return longer if len(longer) <= _PATH_CHARS_MAX else longer[:60] + "[...]" + longer[-60:]


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _a(kind: type) -> str:
    article = "an" if kind.__name__[:1].lower() in "aeiou" else "a"
    return f"{article} {kind.__name__}"
