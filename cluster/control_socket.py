"""The control socket: one request and one answer a connection, each a JSON object on a line.

In: ``{"token": TOKEN, "do": VERB, …}`` (``cluster.control``; ``"do": "status"`` asks).
Out: ``{"ok": true, "said": TEXT, "status": {…}}`` or ``{"ok": false, "error": TEXT, "code": EXIT_CODE}``.

The socket is in the state directory, for the owner alone, and the token is asked for all the same, compared in constant
time. A connection that sends no request in time, too long a one, or is one too many, is closed. A request that was
begun is carried out even when whoever asked has gone.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from cluster.control import Operator
from cluster.control_file import ControlAddress, SocketPlace
from cluster.lines import encode
from cluster.refusal import ControlRefused
from tiedreq.core.errors import BadOption

log = logging.getLogger("control")

REQUEST_BYTES_MAX = 64 * 1024
ANSWER_BYTES_MAX = 64 * 1024 * 1024
REQUEST_SECONDS = 5.0
ANSWER_SECONDS = 10.0
CONNECTIONS_MAX = 32


async def serve_control(
    directory: Path, token: str, operator: Operator, *, task_status: trio.TaskStatus[bool] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve until cancelled; reports True once it listens, or False, and returns, where no socket can be had."""
    with SocketPlace(directory) as place:
        listener = _listen(place.path) if place.path is not None else None
        if listener is None:
            task_status.started(False)
            return
        server = _Server(token, operator)
        try:
            async with trio.open_nursery() as nursery:
                task_status.started(True)
                await trio.serve_listeners(server.connection, [listener], handler_nursery=nursery)
        finally:
            with suppress(OSError):
                os.unlink(str(place.path))


def _listen(path: str) -> trio.SocketListener | None:
    with suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listening.bind(path)
        listening.listen(CONNECTIONS_MAX)
    except OSError as error:
        listening.close()
        log.warning("no control socket: %s", error)
        return None
    finally:
        os.umask(before)
    return trio.SocketListener(trio.socket.from_stdlib_socket(listening))


class _Server:
    def __init__(self, token: str, operator: Operator) -> None:
        self._token = token
        self._operator = operator
        self._connections = 0

    async def connection(self, stream: trio.SocketStream) -> None:
        self._connections += 1
        try:
            async with stream:
                if self._connections > CONNECTIONS_MAX:
                    return
                line = await _read_line(stream, REQUEST_BYTES_MAX, REQUEST_SECONDS)
                if line is not None:
                    answer = await self._answer(line)
                    with trio.move_on_after(ANSWER_SECONDS):
                        await stream.send_all(encode(answer))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._connections -= 1

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            return {"ok": False, "error": "the request is not a JSON object", "code": 2}
        token = request.pop("token", None)
        if not isinstance(token, str) or not hmac.compare_digest(token.encode(), self._token.encode()):
            return {"ok": False, "error": "the control token is not that of this cluster", "code": 1}
        return await answer(self._operator, request)


async def answer(operator: Operator, request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a request that may be made, and say what became of it."""
    try:
        said = "" if request.get("do") == "status" else await operator.carry_out(request)
    except BadOption as error:
        return {"ok": False, "error": str(error), "code": 2}
    except ControlRefused as error:
        return {"ok": False, "error": str(error), "code": 1}
    return {"ok": True, "said": said, "status": operator.status()}


async def ask(
    directory: Path, address: ControlAddress, request: Mapping[str, Any], seconds: float = math.inf
) -> dict[str, Any]:
    """Ask the launcher and wait for its answer. Raises ``OSError``, ``TimeoutError`` when none comes in time."""
    with SocketPlace(directory) as place:
        if place.path is None:
            raise OSError("the path of the state directory is too long for a socket")
        async with await trio.open_unix_socket(place.path) as stream:
            began = trio.current_time()
            try:
                await stream.send_all(encode({**request, "token": address.token}))
                line = await _read_line(stream, ANSWER_BYTES_MAX, seconds)
            except trio.BrokenResourceError:
                line = None
    if line is None and trio.current_time() >= began + seconds:
        raise TimeoutError(f"nothing was heard for {seconds:g} s")
    if line is None:
        raise OSError("the launcher closed the connection without an answer")
    found: dict[str, Any] = json.loads(line)
    return found


async def _read_line(stream: trio.SocketStream, longest: int, seconds: float) -> bytes | None:
    """One line; None when it does not come in time, is too long, or the other side has closed."""
    buffer = bytearray()
    with trio.move_on_after(seconds):
        while b"\n" not in buffer:
            chunk = await stream.receive_some(64 * 1024)
            if not chunk or len(buffer) + len(chunk) > longest:
                return None
            buffer += chunk
        return bytes(buffer[: buffer.index(b"\n")])
    return None
