"""Usual frames of a WebSocket (RFC 6455, section 5.2), made and taken apart: binary messages, each in one frame.

Synchronous, without a stream: ``net.shortcut`` reads and writes. Not for anything unusual, which is the library's.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import Any

_BINARY = 0x82
_PING, _PONG = 0x89, 0x8A
_MASKED = 0x80
_CONTROL_BYTES_MAX = 125
_INT_BYTES_MAX = 512
_ARRAY_BYTES_MIN = 1024
_XOR = [bytes(byte ^ key for byte in range(256)) for key in range(256)]


def masked(data: bytes | memoryview, key: bytes) -> bytes | bytearray:
    """``data`` with ``key`` (four bytes) laid over it; doing it twice undoes it."""
    size = len(data)
    if size < _INT_BYTES_MAX:
        keys = (key * (size // 4 + 1))[:size]
        return (int.from_bytes(data, "little") ^ int.from_bytes(keys, "little")).to_bytes(size, "little")
    result = bytearray(data)
    if size >= _ARRAY_BYTES_MIN:
        numpy: Any = sys.modules.get("numpy")
        if hasattr(numpy, "frombuffer") and hasattr(numpy, "uint32"):  # not while another thread imports it
            _mask_words(numpy, result, key)
            return result
    for offset in range(4):
        result[offset::4] = result[offset::4].translate(_XOR[key[offset]])
    return result


def _mask_words(numpy: Any, data: bytearray, key: bytes) -> None:
    """Lay ``key`` over ``data`` where it is, sixteen times as fast, in a program that has imported NumPy itself."""
    count = len(data) // 4
    words = numpy.frombuffer(data, numpy.uint32, count)
    words ^= numpy.frombuffer(key, numpy.uint32)
    for position in range(4 * count, len(data)):
        data[position] ^= key[position % 4]


def binary_frame(data: bytes, *, mask: bool) -> bytes:
    """``data`` as one unfragmented binary frame."""
    size, bit = len(data), _MASKED if mask else 0
    if size < 126:
        header = bytes((_BINARY, bit | size))
    elif size < 65_536:
        header = bytes((_BINARY, bit | 126)) + size.to_bytes(2, "big")
    else:
        header = bytes((_BINARY, bit | 127)) + size.to_bytes(8, "big")
    if not mask:
        return header + data
    key = os.urandom(4)
    return b"".join((header, key, masked(data, key)))


class FrameParser:
    """Takes usual frames out of what was read.

    ``client``: which side of the WebSocket reads. Pings and pongs come out apart, for the library. From the first frame
    that is unusual nothing more is taken out: ``unusual`` is then True, and ``rest`` begins with it.
    """

    def __init__(self, *, client: bool, frame_bytes_max: int) -> None:
        self.frames: deque[bytes] = deque()
        """Payloads of frames, in order, for whoever takes them."""
        self.controls = bytearray()
        """Pings and pongs, whole, for whoever takes them."""
        self.unusual = False
        self.rest = b""
        """What was read and is in no frame yet."""
        self._masked_bit = 0 if client else _MASKED
        self._frame_bytes_max = frame_bytes_max

    def feed(self, data: bytes) -> bool:
        """Take in what was read; True if frames came of it."""
        if self.unusual:
            self.rest += data
            return False
        if self.rest:
            data = self.rest + data
        start, size = 0, len(data)
        masked_bit, frames = self._masked_bit, self.frames
        before = len(frames)
        while size - start >= 2:
            first, second = data[start], data[start + 1]
            length, at = second & 0x7F, start + 2
            if (first != _BINARY and first != _PING and first != _PONG) or second & _MASKED != masked_bit:
                self.unusual = True
                break
            if length > _CONTROL_BYTES_MAX:
                wide = 2 if length == 126 else 8
                if size < at + wide:
                    break
                length = int.from_bytes(data[at : at + wide], "big")
                at += wide
                if first != _BINARY or length > self._frame_bytes_max or length < (126 if wide == 2 else 65_536):
                    self.unusual = True
                    break
            payload_at = at + 4 if masked_bit else at
            end = payload_at + length
            if end > size:
                break
            if first != _BINARY:
                self.controls += data[start:end]
            elif masked_bit:
                frames.append(bytes(masked(memoryview(data)[payload_at:end], data[at:payload_at])))
            else:
                frames.append(data[payload_at:end])
            start = end
        self.rest = data[start:] if start else data
        return len(frames) > before
