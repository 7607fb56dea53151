"""The brake on extra copies: a bucket of *work*, in busy seconds of replicas, not of copies sent.

A budget in copies lets a few long duplicates overload a service (a duplicate of a call that is slow by nature costs
as much as many usual calls). So the bucket holds busy time, kept in whole nanoseconds so that nothing is lost:

* **deposits**: share × useful busy time, when an answer is used. Only what was useful counts: the time that a stopped
  straggler no longer takes is no income. So is a floor of one backup's work every ``FLOOR_SECONDS``: where a call a
  second comes in, a share of the traffic rounds to nothing. The floor is beyond the share, and is documented as such:
  per method and client at most 0.1 backups a second.
* **withdrawals**: a backup takes its expected busy time when it leaves, or more as long as it is not known to be
  right (``core.learning``), and gives a ticket; the ticket is settled with the true busy time when the backup ends,
  however it ends: what it won, lost or never used comes back, what it took beyond is taken. A ticket settles once.
  One that is never settled (its caller crashed) stays spent as expected: nothing is lost or made, and nothing has to
  be kept. A double start takes what its executions took together beyond the mean of one, and gives back what they
  took less (with memoryless service times the two together take as long as one, since the first to end stops the
  other: charging the whole loser would brake what costs nothing). A failover after a refusal takes a call's work and
  keeps it (it is a token against storms, not extra work).
* **capacity**: max(``BURST_BACKUPS`` × work of a backup, ``HOLD_SECONDS`` × share × useful work per second), the
  latter averaged over ``RATE_SECONDS``. What comes in beyond it is forfeited. The bucket starts full; an empty one is
  full again after (capacity - balance) / (share × useful work per second + floor) seconds.

Conservation, exact at any moment, with ``taken`` net of what tickets gave back:

    balance = initial + deposited - forfeited - taken

The balance is at least 0 when a copy leaves; it goes below 0 only by corrections (a backup that took longer than
expected) and by work lost to double starts, and then nothing leaves until that is paid back. Hence, over any time,
extra work <= initial + floor + share × useful work + what open tickets took beyond their expectation.

Finagle's RetryBudget is the model of deposits by traffic and of the floor; it counts requests, this counts work.
An empty bucket means "wait on", never an error. Not for whether backups are any use: that is ``core.governor``.
"""

from __future__ import annotations

import math

BURST_BACKUPS = 10
HOLD_SECONDS = 2.0
RATE_SECONDS = 10.0
FLOOR_SECONDS = 10.0
UNTIED_SECONDS = 1.0
"""Ties pause at least this long once double starts have emptied the bucket, and until the debt is paid."""
LINK_LOST_BURST = 100.0
LINK_LOST_SHARE = 0.1
LINK_LOST_PER_SECOND = 1.0
LINK_LOST_TIMES = 2.0
LINK_LOST_FADE_SECONDS = 60.0

_NANO = 1_000_000_000


def _nanoseconds(seconds: float) -> int:
    """Whole nanoseconds of a duration; one that is not finite or below 0 counts as 0."""
    return round(seconds * _NANO) if seconds > 0 and math.isfinite(seconds) else 0


class Ticket:
    """What one backup took from the bucket when it left, in nanoseconds. It settles once."""

    __slots__ = ("open", "taken")

    def __init__(self, taken: int) -> None:
        self.taken = taken
        self.open = True


class WorkBudget:
    """The bucket of one method of one client. ``work`` is what one backup is expected to take.

    ``share`` is the extra work allowed, as a share of useful work; with 0 nothing leaves and nothing is earned.
    """

    def __init__(self, share: float, work: float, now: float) -> None:
        self._share = share
        self._work = _nanoseconds(work)
        self._income = 0.0
        self._at = now
        self._floor_part = 0.0
        self._untied_until = -math.inf
        self._lost_rate = 0.0
        self._lost_at = now
        self.balance = self.capacity
        self.initial = self.balance
        self.deposited = 0
        self.floored = 0
        self.forfeited = 0
        self.taken = 0
        self.lost = 0
        self.denied = 0

    # ---- what it may hold -------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """The most that the bucket holds now, in nanoseconds of work; the module's formula."""
        if self._share <= 0:
            return 0
        burst, held = BURST_BACKUPS * self._work, int(HOLD_SECONDS * self._share * self._income)
        return held if held > burst else burst

    def set_work(self, work: float, now: float) -> None:
        """The expected busy time of one backup, in seconds."""
        amount = _nanoseconds(work)
        if amount != self._work:
            self._advance(now)
            self._work = amount
            self._put(0)

    def _put(self, amount: int) -> None:
        self.balance += amount
        beyond = self.balance - self.capacity
        if beyond > 0:
            self.forfeited += beyond
            self.balance -= beyond

    def _advance(self, now: float) -> None:
        """Let the average of income fade, and pay the floor in, by the time passed: continuous, never in steps."""
        passed = now - self._at
        if passed <= 0:
            return
        self._at = now
        self._income *= math.exp(-passed / RATE_SECONDS)
        if self._share > 0 and self._work:
            exact = self._floor_part + self._work * passed / FLOOR_SECONDS
            amount = int(exact)
            self._floor_part = exact - amount
            self.floored += amount
            self.deposited += amount
            self._put(amount)
        else:
            self._put(0)

    # ---- deposits ---------------------------------------------------------------------------------------------

    def earn(self, useful: float, now: float) -> None:
        """An answer was used; ``useful`` is the busy time of its execution, in seconds."""
        work = _nanoseconds(useful)
        self._advance(now)
        self._income += work / RATE_SECONDS
        amount = round(self._share * work)
        self.deposited += amount
        self._put(amount)

    def income(self, now: float) -> float:
        """Useful work per second of time, averaged over the last seconds (``RATE_SECONDS``)."""
        self._advance(now)
        return self._income / _NANO

    def _pace(self, now: float) -> float:
        """What comes in, in nanoseconds of work per second."""
        floor = self._work / FLOOR_SECONDS if self._share > 0 else 0.0
        return self._share * self.income(now) * _NANO + floor

    def seconds_to_full(self, now: float) -> float | None:
        """How long until the bucket is full if traffic goes on as now; None when it never will."""
        pace = self._pace(now)
        missing = self.capacity - self.balance
        if missing <= 0:
            return 0.0
        return missing / pace if pace > 0 else None

    # ---- withdrawals ------------------------------------------------------------------------------------------

    def try_spend(self, expected: float, now: float, most: float = 0.0) -> Ticket | None:
        """Take the expected busy time of a copy, in seconds; None (counted as denied) when the bucket has less.

        Where ``most`` is more and the bucket has it, so much is taken: what the copy may come to take.
        """
        self._advance(now)
        amount = _nanoseconds(expected)
        if self._share <= 0 or self.balance < amount:
            self.denied += 1
            return None
        amount = max(amount, min(_nanoseconds(most), self.balance))
        self.balance -= amount
        self.taken += amount
        return Ticket(amount)

    def settle(self, ticket: Ticket, busy: float, now: float) -> None:
        """The copy has ended, and kept a replica busy for ``busy`` seconds (0 when it never started)."""
        if not ticket.open:
            return
        ticket.open = False
        self._advance(now)
        back = ticket.taken - _nanoseconds(busy)
        self.taken -= back
        self._put(back)

    def lose(self, busy: float, now: float) -> None:
        """Two copies of a tie started, and ``busy`` seconds of work were for nothing."""
        self._advance(now)
        amount = _nanoseconds(busy)
        self.taken += amount
        self.lost += amount
        self.balance -= amount
        self._lost_rate = self._lost_per_second(now) + amount / RATE_SECONDS
        self._lost_at = max(self._lost_at, now)
        if self.balance < 0 and self._lost_rate > self._pace(now) / 2:
            self._untied_until = now + UNTIED_SECONDS

    def regain(self, saved: float, now: float) -> None:
        """Two copies of a tie started, and both together took ``saved`` seconds less than one execution takes."""
        self._advance(now)
        amount = _nanoseconds(saved)
        self.taken -= amount
        self.lost -= amount
        self._put(amount)
        self._lost_rate = self._lost_per_second(now) - amount / RATE_SECONDS
        self._lost_at = max(self._lost_at, now)

    def _lost_per_second(self, now: float) -> float:
        return self._lost_rate * math.exp(-max(0.0, now - self._lost_at) / RATE_SECONDS)

    def ties_allowed(self, now: float) -> bool:
        """False for a while when double starts emptied the bucket: at least a second, and until the debt is paid.

        They count as the cause when they took more than half of what came in over the last seconds. A bucket that
        backups keep near 0 does not stop ties: backups wait for it.
        """
        if self._untied_until == -math.inf:
            return True
        self._advance(now)
        if now < self._untied_until or self.balance < 0:
            return False
        self._untied_until = -math.inf
        return True

    def lost_share(self, now: float) -> float:
        """The share of income that double starts take, from 0 to 1: what is left is for backups."""
        earned = self._pace(now)
        return min(1.0, max(0.0, self._lost_per_second(now)) / earned) if earned > 0 else 0.0


class LinkLostBudget:
    """Failovers after a lost link: copies that a lost replica took along, with a limit of their own, in copies.

    What is spent is a debt, of two parts. The small one grows to ``LINK_LOST_BURST``, whatever goes on. The large one
    is spent first, and is there only while many calls are under way: with it both come to ``LINK_LOST_TIMES`` as much
    as there are calls under way, for a replica that is lost takes along all that it was given, and a second one, soon
    after, is to cost no call either. ``LINK_LOST_SHARE`` is paid back per answered call and ``LINK_LOST_PER_SECOND``
    with time, of the small part first; the large one fades besides, within ``LINK_LOST_FADE_SECONDS`` to a third. So
    what was lost while many calls were under way leaves the small part to those few that come after them. It stops a
    call that kills one replica after another, and a link that comes and goes, from being retried without end.
    """

    def __init__(self, now: float) -> None:
        self.small = self.large = 0.0
        self.denied = 0
        self._at = now

    @property
    def debt(self) -> float:
        """Both parts."""
        return self.small + self.large

    def _pay(self, copies: float) -> None:
        left = copies - self.small
        self.small = max(0.0, -left)
        if left > 0:
            self.large = max(0.0, self.large - left)

    def earn(self) -> None:
        """A call was answered."""
        if self.small or self.large:
            self._pay(LINK_LOST_SHARE)

    def try_spend(self, now: float, under_way: int) -> bool:
        """Take one while so many calls are under way; False (counted) when there is none."""
        if now > self._at:
            self.large *= math.exp((self._at - now) / LINK_LOST_FADE_SECONDS)
            self._pay((now - self._at) * LINK_LOST_PER_SECOND)
            self._at = now
        if self.large + 1 <= LINK_LOST_TIMES * under_way - LINK_LOST_BURST + 1e-9:
            self.large += 1
        elif self.small + 1 <= LINK_LOST_BURST + 1e-9:
            self.small += 1
        else:
            self.denied += 1
            return False
        return True
