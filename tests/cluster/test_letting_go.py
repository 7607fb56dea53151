"""At the end of the launcher a reader that is gone changes nothing."""

from __future__ import annotations

import os

from cluster.up import _let_go


def test_a_stream_that_nobody_reads_is_emptied_all_the_same() -> None:
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    stream.write("the last words")
    os.close(reader)
    _let_go(stream)
    stream.flush()
    stream.close()
    assert stream.closed
