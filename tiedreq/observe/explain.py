"""The timeline of one call, put together from what its client and its replicas remember of it.

Clocks of different machines differ. A replica's times are moved by as little as makes sense of them: a copy can't
arrive before it was sent, and the client can't hear of a start or an end before it happened. ``Timeline.shifts`` says
by how much. Without the client's own record nothing is moved.

Pure: takes the snapshots' plain values, returns text or events. Not for how these are fetched (``tiedreq.commands``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tiedreq.observe.snapshot import CallView, CopyView
from tiedreq.observe.stories import SENT_WHAT, ReplicaStory, StoryEvent

CLIENT = "client"
BAR_COLUMNS = 60
ARROW_SECONDS = 2e-6
"""As long as the ends of an arrow look in Perfetto."""
SHIFT_MIN = 1e-6
"""Seconds: less than that is no more than how numbers are rounded."""
ENDS = ("ended", "done", "failed")


class Moment(NamedTuple):
    """Something that happened ``at`` seconds after the call began, at the client or at a replica.

    ``notice``: it is the sending or the hearing of one of ``Timeline.notices``.
    """

    at: float
    where: str
    copy: str
    what: str
    notice: bool = False


@dataclass(slots=True)
class Bar:
    """One copy: when it was sent, arrived at its replica, started and ended there, in seconds; None: not known."""

    copy: str
    replica: str
    kind: str = ""
    sent: float | None = None
    arrived: float | None = None
    started: float | None = None
    ended: float | None = None
    end: str = ""
    winner: bool = False


@dataclass(slots=True)
class Notice:
    """What a replica told another one of its ``copy``: when it left and when it was heard, in seconds; None: never.

    ``kind``: ``started``, ``next``, ``claim``, ``granted`` or ``denied``.
    """

    kind: str
    copy: str
    sender: str
    receiver: str
    sent: float | None = None
    heard: float | None = None


@dataclass(slots=True)
class Timeline:
    """A call. ``began`` is in seconds since 1970, ``latency`` None where the client's record is missing."""

    call_id: str
    method: str | None
    policy: str | None
    began: float
    latency: float | None
    outcome: str | None
    winner: str | None
    moments: list[Moment] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    shifts: dict[str, float] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """When the last thing happened, in seconds after the call began."""
        return max([self.latency or 0.0, *(moment.at for moment in self.moments)])


def timeline(call_id: str, client: CallView | None, stories: Iterable[ReplicaStory]) -> Timeline | None:
    """Put it together; None when nobody remembers anything."""
    known = [story for story in stories if story["events"]]
    if client is None and not known:
        return None
    began = client["began"] if client is not None else min(story["events"][0]["at"] for story in known)
    found = Timeline(
        call_id=call_id,
        method=client["method"] if client is not None else next((s["method"] for s in known if s["method"]), None),
        policy=client["policy"] if client is not None else None,
        began=began,
        latency=client["latency"] if client is not None else None,
        outcome=client["outcome"] if client is not None else None,
        winner=client["replica"] if client is not None else None,
    )
    bars: dict[str, Bar] = {}
    copies = client["copies"] if client is not None else []
    for copy in copies:
        bars[copy["copy"]] = _client_bar(copy)
        found.moments += _client_moments(copy)
    if client is not None:
        found.moments.append(Moment(client["latency"], CLIENT, "", _ending(client)))
    for story in known:
        mine = [copy for copy in copies if copy["replica"] == story["name"]]
        shift = _shift(mine, story["events"], began)
        if shift:
            found.shifts[story["name"]] = shift
        for event in story["events"]:
            at = event["at"] - began + shift
            notice = "peer" in event
            found.moments.append(Moment(at, story["name"], event["copy"], _words(event), notice))
            if notice:
                _mark_notice(found.notices, event, story["name"], at)
                continue
            bar = bars.setdefault(event["copy"], Bar(event["copy"], story["name"]))
            _mark(bar, event, at)
    found.moments.sort(key=lambda moment: moment.at)
    found.bars = sorted(bars.values(), key=lambda bar: _first(bar.sent, bar.arrived, bar.started, bar.ended))
    return found


def _first(*times: float | None) -> float:
    return next((time for time in times if time is not None), 0.0)


def _client_bar(copy: CopyView) -> Bar:
    bar = Bar(copy["copy"], copy["replica"], copy["kind"], sent=copy["sent"], winner=copy["winner"])
    bar.end = copy["end"] or ""
    if copy["started"] is not None:
        bar.started = copy["started"]
    bar.ended = copy["ended"]
    return bar


def _client_moments(copy: CopyView) -> list[Moment]:
    lane = f"{copy['kind']} copy to {copy['replica']}"
    moments = [Moment(copy["sent"], CLIENT, copy["copy"], f"sends the {lane}")]
    if copy["started"] is not None:
        moments.append(Moment(copy["started"], CLIENT, copy["copy"], "hears that it started"))
    if copy["ended"] is not None:
        moments.append(Moment(copy["ended"], CLIENT, copy["copy"], f"hears that it ended: {copy['end']}"))
    return moments


def _ending(client: CallView) -> str:
    code = f" ({client['code']})" if client["code"] else ""
    where = f" by {client['replica']}" if client["replica"] and client["outcome"] == "answered" else ""
    lost = [copy["replica"] for copy in client["copies"] if copy["ended"] is None and not copy["winner"]]
    return f"the call is {client['outcome']}{code}{where}" + (f"; cancels at {', '.join(lost)}" if lost else "")


def _words(event: StoryEvent) -> str:
    what, detail = event["what"], event["detail"]
    if "peer" in event:
        return f"{'tells' if what == SENT_WHAT else 'hears from'} {event['peer']}: {detail}"
    if what in ("done", "failed") and event["service_time"] is not None and event["queue_wait"] is not None:
        waited, worked = 1000 * event["queue_wait"], 1000 * event["service_time"]
        return f"{what} after {waited:.2f} ms in the queue and {worked:.2f} ms of work"
    return f"{what}: {detail}" if detail else what


def _mark(bar: Bar, event: StoryEvent, at: float) -> None:
    """What the replica itself says of a copy counts more than what the client heard."""
    match event["what"]:
        case "arrived":
            bar.arrived = at
            bar.kind = bar.kind or event["detail"]
        case "started":
            bar.started = at
        case what if what in ENDS:
            bar.ended = at
            bar.end = event["detail"] or what


def _mark_notice(notices: list[Notice], event: StoryEvent, where: str, at: float) -> None:
    """Put both ends of a notice together. One that was said again is told apart by its turn."""
    sent, peer = event["what"] == SENT_WHAT, event["peer"]
    sender, receiver = (where, peer) if sent else (peer, where)
    for notice in notices:
        same = (notice.kind, notice.copy) == (event["detail"], event["copy"])
        open_ = (notice.sent if sent else notice.heard) is None
        if same and open_ and (notice.sender, notice.receiver) == (sender, receiver):
            break
    else:
        notice = Notice(event["detail"], event["copy"], sender, receiver)
        notices.append(notice)
    if sent:
        notice.sent = at
    else:
        notice.heard = at


def _shift(copies: Sequence[CopyView], events: Sequence[StoryEvent], began: float) -> float:
    """By how many seconds a replica's times have to be moved, at least, to agree with its caller's."""
    low, high = float("-inf"), float("inf")
    sent = {copy["copy"]: copy for copy in copies}
    for event in events:
        copy = sent.get(event["copy"])
        if copy is None:
            continue
        at = event["at"] - began
        low = max(low, copy["sent"] - at)
        heard = copy["started"] if event["what"] == "started" else None
        if event["what"] in ENDS:
            heard = copy["ended"]
        if heard is not None:
            high = min(high, heard - at)
    least = low if low > 0 else high if high < 0 else 0.0
    if low > high:  # both can't be had: the clocks drift, or were set meanwhile
        least = (low + high) / 2
    return least if abs(least) >= SHIFT_MIN else 0.0


# ---- to be read ---------------------------------------------------------------------------------------------------


def as_text(found: Timeline) -> str:
    """The timeline in lines: a bar for each copy, then every moment."""
    lines = [_headline(found), ""]
    lines += _bars(found)
    width = max((len(moment.where) for moment in found.moments), default=6)
    lines += ["", f"{'ms':>10}  {'where':<{width}}  copy   what happened"]
    for moment in found.moments:
        lane = moment.copy.partition("/")[2]
        lines.append(f"{1000 * moment.at:10.3f}  {moment.where:<{width}}  {lane:<5}  {moment.what}")
    for replica, shift in sorted(found.shifts.items()):
        lines.append(f"(times of {replica} moved by {1000 * shift:+.3f} ms: its clock and the client's differ)")
    if found.latency is None:
        lines.append("(the client's own record is missing: what it sent and heard is not shown)")
    return "\n".join(lines)


def _headline(found: Timeline) -> str:
    method = f" of {found.method!r}" if found.method else ""
    policy = f" under {found.policy}" if found.policy else ""
    ending = ""
    if found.latency is not None:
        where = f" by {found.winner}" if found.winner and found.outcome == "answered" else ""
        ending = f": {found.outcome}{where} after {1000 * found.latency:.3f} ms"
    return f"call {found.call_id}{method}{policy}{ending}"


def _bars(found: Timeline) -> list[str]:
    """A line for each copy: ``.`` on its way, ``-`` in the queue, ``=`` running."""
    scale = BAR_COLUMNS / found.end if found.end > 0 else 0.0
    width = max((len(bar.replica) for bar in found.bars), default=2)
    lines = []
    for bar in found.bars:
        cells = [" "] * (BAR_COLUMNS + 1)
        last = found.end if bar.ended is None else bar.ended
        for begin, end, letter in (
            (bar.sent, _first(bar.arrived, bar.started, last), "."),
            (bar.arrived, _first(bar.started, last), "-"),
            (bar.started, last, "="),
        ):
            if begin is None:
                continue
            for column in range(_column(begin, scale), _column(end, scale) + 1):
                cells[column] = letter
        lane = bar.copy.partition("/")[2]
        mark = " *" if bar.winner else ""
        lines.append(f"{bar.replica:<{width}} {lane:<5} {bar.kind:<8} |{''.join(cells)}| {bar.end}{mark}")
    lines.append(
        f"{'':<{width}} {'':<5} {'':<8} |0{f'{1000 * found.end:.1f} ms':>{BAR_COLUMNS}}|  . sent  - queued  = runs"
    )
    return lines


def _column(at: float, scale: float) -> int:
    return min(max(round(at * scale), 0), BAR_COLUMNS)


# ---- for Perfetto -------------------------------------------------------------------------------------------------


def as_perfetto(found: Timeline) -> dict[str, Any]:
    """The timeline in the trace event format, which ui.perfetto.dev and chrome://tracing open. Times in microseconds.

    A process for the client and one for each replica; slices for the call, for a copy's way and for its wait and its
    execution at the replica; an arrow for each notice from one replica to another; instants for all the rest.
    """
    known = {notice.sender for notice in found.notices} | {notice.receiver for notice in found.notices}
    known |= {bar.replica for bar in found.bars} | {moment.where for moment in found.moments}
    places = [CLIENT, *sorted(known - {CLIENT})]
    numbers = {place: number for number, place in enumerate(places, 1)}
    lanes = {bar.copy: number for number, bar in enumerate(found.bars, 1)}
    events: list[dict[str, Any]] = []
    for place, number in numbers.items():
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": place}})
    for bar in found.bars:
        for place in (CLIENT, bar.replica):
            name = f"{bar.copy.partition('/')[2]} {bar.kind}".strip()
            thread = {"pid": numbers[place], "tid": lanes[bar.copy]}
            events.append({"ph": "M", "name": "thread_name", **thread, "args": {"name": name}})
    if found.latency is not None:
        arguments = {"call_id": found.call_id, "outcome": found.outcome, "policy": found.policy}
        events.append(_slice(found.method or "call", 0.0, found.latency, numbers[CLIENT], 0, arguments))
    for bar in found.bars:
        last = found.end if bar.ended is None else bar.ended
        told = {"copy": bar.copy, "kind": bar.kind, "end": bar.end, "winner": bar.winner}
        lane = lanes[bar.copy]
        if bar.sent is not None:
            events.append(_slice(f"{bar.kind} copy to {bar.replica}", bar.sent, last, numbers[CLIENT], lane, told))
        if bar.arrived is not None:
            events.append(_slice("queued", bar.arrived, _first(bar.started, last), numbers[bar.replica], lane, told))
        if bar.started is not None:
            events.append(_slice("runs", bar.started, last, numbers[bar.replica], lane, told))
    events += _arrows(found, numbers, lanes)
    for moment in found.moments:
        if not moment.notice:
            instant = {"ph": "i", "s": "t", "name": moment.what, "ts": _microseconds(moment.at)}
            events.append({**instant, "pid": numbers[moment.where], "tid": lanes.get(moment.copy, 0)})
    return {
        "displayTimeUnit": "ms",
        "otherData": {"call_id": found.call_id, "began": found.began},
        "traceEvents": events,
    }


def _lane(found: Timeline, lanes: dict[str, int], where: str, copy: str) -> int:
    """The lane at a replica of what concerns ``copy``: that of its own copy in the same tie; 0 where it has none."""
    tie = copy.rpartition(".")[0]
    own = [bar.copy for bar in found.bars if bar.replica == where]
    return lanes[copy] if copy in own else next((lanes[one] for one in own if one.rpartition(".")[0] == tie), 0)


def _arrows(found: Timeline, numbers: dict[str, int], lanes: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Each notice as an arrow between two short slices, where both ends are known; else as the one slice."""
    for number, notice in enumerate(found.notices, 1):
        lane = notice.copy.partition("/")[2]
        ends = (
            ("s", notice.sent, notice.sender, f"tells {notice.receiver}: {lane} {notice.kind}"),
            ("f", notice.heard, notice.receiver, f"hears from {notice.sender}: {lane} {notice.kind}"),
        )
        for phase, at, where, name in ends:
            if at is None:
                continue
            place = numbers[where], _lane(found, lanes, where, notice.copy)
            yield _slice(name, at, at + ARROW_SECONDS, *place, {"copy": notice.copy})
            if notice.sent is not None and notice.heard is not None:
                flow = {"ph": phase, "id": number, "name": "notice", "cat": "notice", "ts": _microseconds(at)}
                yield {**flow, "pid": place[0], "tid": place[1], **({"bp": "e"} if phase == "f" else {})}


def _slice(name: str, begin: float, end: float, pid: int, tid: int, arguments: dict[str, Any]) -> dict[str, Any]:
    duration = max(0.0, end - begin)
    times = {"ts": _microseconds(begin), "dur": _microseconds(duration)}
    return {"ph": "X", "name": name, **times, "pid": pid, "tid": tid, "args": arguments}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
