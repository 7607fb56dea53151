"""Groups of replicas, so that a large mesh needs few links: the copies of one tie are at replicas of one group.

A group is made of names alone: a stable number of 32 bits is made of each name, and the first ``bits`` of it say the
group, with

    bits = floor(log2(replicas / SIZE_MIN)), at least 0

so that groups have ``SIZE_MIN`` to twice as many members on average, below ``2 x SIZE_MIN`` replicas there is one, and
twice as many replicas halve each group. Whoever knows the same names finds the same groups, in any process. One who
knows of fewer replicas may find larger ones, which costs links and nothing else. Zones play no part: a group has
replicas of each.
"""

from __future__ import annotations

SIZE_MIN = 16
_BASIS, _PRIME, _MASK = 0x811C9DC5, 0x01000193, 0xFFFFFFFF


def place(name: str) -> int:
    """A number of 32 bits made of a name, the same for ever: FNV-1a, with the bits mixed (as in MurmurHash3)."""
    value = _BASIS
    for byte in name.encode("utf-8", "surrogatepass"):
        value = (value ^ byte) * _PRIME & _MASK
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    return value ^ value >> 16


def bits(replicas: int) -> int:
    """How many bits of ``place`` tell the group, among so many replicas."""
    return max(0, (replicas // SIZE_MIN).bit_length() - 1)


def group_of(name: str, replicas: int) -> int:
    """The group of a replica, among so many."""
    return place(name) >> 32 - bits(replicas)
