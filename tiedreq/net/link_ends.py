"""The two ends of a link: the one that dials, and the one that accepted a connection. ``net.link`` runs both."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random, SystemRandom

from tiedreq.core.errors import BadOption
from tiedreq.core.link import Admit, LinkCore
from tiedreq.core.link_options import Authenticator, LinkSide
from tiedreq.core.messages import Hello, Welcome
from tiedreq.net.link import Link
from tiedreq.net.link_owner import LinkOptions, LinkOwner
from tiedreq.wire.codec import encode_message

_link_ids = count(1)
_DEFAULT_OPTIONS = LinkOptions()


def dialed_link(
    side: LinkSide,
    owner: LinkOwner,
    authenticator: Authenticator,
    *,
    label: str = "",
    expected_name: str | None = None,
    welcome: Callable[[], Welcome] | None = None,
    admit: Admit | None = None,
    retry_refused: bool = True,
    options: LinkOptions = _DEFAULT_OPTIONS,
    rng: Random | None = None,
) -> Link:
    """A link that this side dials, again and again; run it with ``run_dialer``.

    ``label`` (a URL, say) begins the text of its errors. ``expected_name``: another replica is refused. ``admit`` is
    called once the other side is proven, as in ``accepted_link``. ``welcome`` is called when a Welcome leaves (a
    replica must give it). Without ``retry_refused`` the link ends for good when token, cluster or protocol version
    don't match. Raises ``BadOption``.
    """
    if side.role == "replica" and welcome is None:
        raise BadOption("a replica that dials needs welcome=")
    _check(side)
    core = LinkCore(
        side,
        options.timing,
        authenticator,
        rng or SystemRandom(),
        _link_ids.__next__,
        dialing=True,
        expected_name=expected_name,
        retry_refused=retry_refused,
        admit=admit,
    )
    return Link(core, owner, options, welcome, label)


def accepted_link(
    side: LinkSide,
    owner: LinkOwner,
    authenticator: Authenticator,
    *,
    welcome: Callable[[], Welcome],
    admit: Admit | None = None,
    label: str = "",
    options: LinkOptions = _DEFAULT_OPTIONS,
    rng: Random | None = None,
) -> Link:
    """A link for one accepted connection; run it with ``run_accepted``.

    ``welcome`` is called when the Welcome leaves, ``admit`` once the other side is proven: None lets it in, a code and
    a reason refuse it. Raises ``BadOption``.
    """
    _check(side)
    core = LinkCore(
        side, options.timing, authenticator, rng or SystemRandom(), _link_ids.__next__, dialing=False, admit=admit
    )
    return Link(core, owner, options, welcome, label)


def _check(side: LinkSide) -> None:
    """Raises ``BadOption`` for names that no other side would take."""
    range_ = (side.protocol_min, side.protocol_max)
    encode_message(Hello(*range_, side.cluster, side.role, side.name, side.incarnation, bytes(32), b""))
