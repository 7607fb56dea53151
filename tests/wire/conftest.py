"""What the wire's tests share: msgpack in C and in pure Python, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import msgpack
import msgpack.fallback
import pytest

from tiedreq.wire import codec, packing, payload


@pytest.fixture(params=["compiled", "pure"])
def both_msgpacks(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs with msgpack's C module, and again with its pure-Python one."""
    if request.param == "compiled":
        if msgpack.unpackb is msgpack.fallback.unpackb:
            pytest.skip("msgpack has no C module here")
        yield "compiled"
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "unpackb", msgpack.fallback.unpackb)
        patch.setattr(payload, "unpackb", msgpack.fallback.unpackb)
        patch.setattr(packing.packers, "pack", msgpack.fallback.Packer().pack)
        yield "pure"
