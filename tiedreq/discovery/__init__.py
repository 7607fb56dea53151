"""Where the members of a cluster come from, while it runs: a list, a watched file, DNS, or a source of your own.

A source is a ``Discovery``: whoever iterates over it gets one set of ``Members`` after another. What a new set means
for those that are known is ``discovery.roster``'s business, what it means for links ``net.membership``'s and
``net.mesh``'s. See docs/membership.md.
"""

from __future__ import annotations

from tiedreq.clusterfile import ReplicaAddress
from tiedreq.discovery.dns import DnsMembers
from tiedreq.discovery.file import FileMembers
from tiedreq.discovery.find import Replicas, Source, find_source
from tiedreq.discovery.members import Discovery, Members, StaticMembers
from tiedreq.discovery.roster import Change, Roster

__all__ = [
    "Change",
    "Discovery",
    "DnsMembers",
    "FileMembers",
    "Members",
    "ReplicaAddress",
    "Replicas",
    "Roster",
    "Source",
    "StaticMembers",
    "find_source",
]
