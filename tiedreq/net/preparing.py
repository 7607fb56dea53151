"""What a client checks before a byte of a call is sent, and the request that comes of it."""

from __future__ import annotations

import secrets
from random import Random
from typing import Any

import trio

from tiedreq.core.call import CallRequest
from tiedreq.core.checks import check_number
from tiedreq.core.errors import BadOption, UsageError
from tiedreq.core.limits import ClientLimits
from tiedreq.core.picker import ReplicaTable
from tiedreq.core.policy import POLICIES, Auto, Plain, Policy, check_policy
from tiedreq.core.types import CallId, MethodInfo, Window
from tiedreq.errors import Overloaded, TooLarge, UnknownMethod, UnsafeToDuplicate
from tiedreq.net.current import current_execution
from tiedreq.net.opencall import OpenCall
from tiedreq.wire.limits import WireLimits
from tiedreq.wire.payload import encode_payload

TIMEOUT_MAX = 86_400.0
_WRONG_KIND = {
    True: "{0!r} is a stream: use `async with client.stream({0!r}, ...) as stream:`. Nothing was sent.",
    False: "{0!r} is a method, not a stream: use client.call(). Nothing was sent.",
}


class Preparing:
    """What a client has to know to prepare a call: its options, the replicas and what they serve, the open calls."""

    def __init__(
        self, policy: Any, timeout: Any, limits: ClientLimits, wire_limits: WireLimits, picker: str, zone: str
    ) -> None:
        self.limits = limits
        self.policy = check_policy(policy)
        self.timeout = check_number("timeout", timeout, 0.0, TIMEOUT_MAX, "seconds")
        self.nonce = secrets.randbits(64)
        self.wire_limits = wire_limits
        self.replicas = ReplicaTable(Random(secrets.randbits(64)), picker, zone)
        self.calls: dict[int, OpenCall] = {}
        self._number = 0
        self.met_methods: dict[str, MethodInfo] = {}
        self.infos: dict[str, MethodInfo] = {}  # what the replicas of now agree on, as far as it was asked for
        self.payload_bytes_max = limits.payload_bytes_max
        self.closed = False

    def prepare(
        self,
        method: Any,
        args: Any,
        timeout: Any,
        key: str | None,
        policy: Any,
        metadata: tuple[tuple[str, str], ...],
        now: float,
        window: Window | None = None,
    ) -> tuple[CallRequest, float, bool]:
        """Check everything that can be checked before a byte is sent. ``window``: it is to be a stream.

        Returns the request, the seconds it has, and whether a surrounding scope set that limit.
        """
        if self.closed:
            raise BadOption("client: it is closed")
        info = self.infos.get(method) if type(method) is str else None
        if info is None:
            info = self._known_method(method)
        if info.stream != (window is not None):
            raise UsageError(_WRONG_KIND[info.stream].format(method))
        above = current_execution.get()
        chosen = self._choose_policy(policy, above is not None)
        if not info.idempotent and policy is not None and not isinstance(policy, Plain | Auto):
            raise UnsafeToDuplicate(
                f"{method!r} is not declared idempotent. Declare @service.method(idempotent=True) if running twice is "
                "harmless, or use client.call(). Nothing was sent."
            )
        if timeout is None:
            seconds = self.timeout
        elif type(timeout) is float and 0.0 <= timeout <= TIMEOUT_MAX:
            seconds = timeout
        else:
            seconds = check_number("timeout", timeout, 0.0, TIMEOUT_MAX, "seconds")
        own, scope = now + min(seconds, info.timeout_max), trio.current_effective_deadline()
        deadline = min(own, scope)
        payload = self._encode(args)
        if len(self.calls) >= self.limits.calls_in_flight_max:
            raise Overloaded(
                f"{len(self.calls)} calls are in flight, the client's calls_in_flight_max. Nothing was sent.",
                retry_after=0.0,
            )
        self._number += 1
        request = CallRequest(
            CallId(self.nonce, self._number),
            method,
            info.idempotent,
            payload,
            chosen,
            deadline,
            key,
            (above is not None and above.layered) or not isinstance(chosen, Plain),
            metadata,
            info.stoppable,
            window,
        )
        return request, deadline - now, scope < own

    def _choose_policy(self, policy: Any, nested: bool) -> Policy:
        """The policy of a call. Inside a handler the default is ``Plain``: one layer hedges."""
        if policy is not None:
            return policy if type(policy) in POLICIES else check_policy(policy)
        return Plain() if nested else self.policy

    def _known_method(self, method: object) -> MethodInfo:
        if not isinstance(method, str):
            raise BadOption(f"method: {method!r} is not a text")
        info = self.replicas.method(method)
        if info is not None:
            self.infos[method] = info
            return info
        info = self.met_methods.get(method)
        if info is None:
            known = ", ".join(sorted(self.met_methods)) or "none"
            raise UnknownMethod(f"no replica serves {method!r}. Methods: {known}. Nothing was sent.")
        return info

    def _encode(self, args: Any) -> bytes:
        payload = encode_payload(args, self.wire_limits, what="args")
        limit = self.payload_bytes_max
        if len(payload) > limit:
            raise TooLarge(
                f"args: {len(payload)} bytes when encoded, over the limit of {limit}. Nothing was sent.",
                limit=limit,
                field="args",
            )
        return payload
