"""A ``Triangle``: real call cores of one client, a real replica table, two or three real replica cores.

Between them lie directed links ("u>a" from the user's client to replica a, "a>b" from a to b, …) whose messages wait
until they are delivered or lost by hand; time passes by hand; handlers end by hand. After every step a ``Watch`` checks
the invariants. ``trace`` tells each event and what it led to.

Links deliver in order unless a message is picked out; no rule relies on the order of two notices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tests.core import driving
from tests.core.invariants import UNSTOPPABLE, Watch, demand
from tests.core.parts import ANSWER, BAD_ANSWER, METHODS, Flight, Node, OrderedTable
from tests.core.telling import NONCE, copy_id, tell_command, tell_event
from tiedreq.core import commands as c
from tiedreq.core import events as e
from tiedreq.core import messages as m
from tiedreq.core.call import CallCore, CallRequest, CallStats
from tiedreq.core.call_table import CallState
from tiedreq.core.errors import RemoteViolation
from tiedreq.core.lessons import LearningBook
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.picker import ReplicaView
from tiedreq.core.policy import Plain, Policy
from tiedreq.core.replica import HeldMethod, ReplicaCore
from tiedreq.core.types import CallId, CopyId, CopyState, Identity

CLIENT = "u"


class Triangle:
    """See the module. Replicas are named by single letters; all links are up at the beginning."""

    def __init__(
        self,
        replicas: str = "ab",
        *,
        slots: int = 1,
        limits: ReplicaLimits | None = None,
        methods: Iterable[HeldMethod] = METHODS,
        rounds_max: int = 5,
        learning: LearningBook | None = None,
    ) -> None:
        self.now = 100.0
        self.trace: list[str] = []
        self.flights: list[Flight] = []
        self.held: set[str] = set()
        self.nodes: dict[str, Node] = {}
        self.table = OrderedTable()
        self.stats = CallStats()
        self.learning = learning
        self.calls: dict[int, CallCore] = {}
        self.watch = Watch()
        self.violations: list[str] = []
        self.outbox_full: set[str] = set()
        """Replicas to which the client's outbox is full."""
        self._slots, self._limits, self._methods = slots, limits, tuple(methods)
        self._rounds_max = rounds_max
        self._incarnations = 0
        self._links = 0
        self._connections: dict[frozenset[str], int] = {}
        self.client_links: dict[int, str] = {}
        self._untold: dict[tuple[str, str], list[int]] = {}
        self._ended_in_order: set[int] = set()
        for name in replicas:
            self.boot(name)

    # ---- replicas and links -----------------------------------------------------------------------------------

    def boot(self, name: str) -> None:
        """A new incarnation of a replica, connected to everyone who lives."""
        demand(name not in self.nodes, "driver", f"{name} lives")
        self._incarnations += 1
        identity = Identity(name, self._incarnations)
        core = ReplicaCore(identity, self._methods, slots=self._slots, limits=self._limits)
        self.nodes[name] = Node(identity, core)
        for other in self.nodes:
            if other != name:
                self.connect(name, other)
        self.connect(CLIENT, name)

    def crash(self, name: str, *, told: str | None = None) -> None:
        """A replica is gone, with all it held and all that was on its way; ``told`` notice now (default: all)."""
        node = self.nodes.pop(name)
        for other in [CLIENT, *self.nodes]:
            if frozenset((name, other)) in self._connections:
                self.cut(name, other, told="".join(self.nodes) + CLIENT if told is None else told)
        self.watch.replica_lost(node.identity)
        self.held = {route for route in self.held if name not in route}
        self.trace.append(f"{name}  is gone")

    def leave(self, name: str) -> None:
        """A replica that has drained ends: all that it has said arrives, and its last word is that this was all."""
        demand(self.nodes[name].drained, "driver", f"{name} has not drained")
        for flight in [flight for flight in self.flights if flight.route.startswith(f"{name}>")]:
            self.arrive(flight)
        self._ended_in_order.add(self.link(CLIENT, name))
        self.crash(name)

    def restart(self, name: str) -> None:
        self.crash(name)
        self.boot(name)

    def connect(self, one: str, other: str) -> None:
        """A new connection, known to both sides."""
        pair = frozenset((one, other))
        demand(pair not in self._connections, "driver", f"{one} and {other} are connected")
        self._links += 1
        link = self._links
        self._connections[pair] = link
        if CLIENT in pair:
            name = other if one == CLIENT else one
            node = self.nodes[name]
            node.links[link] = CLIENT
            self.client_links[link] = name
            self._give(node, e.CallerConnected(link, NONCE))
            infos = tuple(method.info for method in self._methods)
            welcome = m.Welcome(node.core.slots, node.core.draining, 1 << 20, infos)
            self.table.add(ReplicaView(link, node.identity, welcome))
            self._tell_calls(e.ReplicaAvailable())
            return
        for here, there in ((one, other), (other, one)):
            self.nodes[here].links[link] = there
        for here, there in ((one, other), (other, one)):
            self._give(self.nodes[here], e.PeerConnected(link, self.nodes[there].identity))

    def cut(self, one: str, other: str, *, told: str = "abcdefgh" + CLIENT) -> int:
        """A connection is gone, with all that was on its way. Who is not ``told`` learns of it by ``tell_lost``."""
        link = self._connections.pop(frozenset((one, other)))
        for flight in [flight for flight in self.flights if flight.link == link]:
            self._lose(flight)
        for here, there in ((one, other), (other, one)):
            self._untold.setdefault((here, there), []).append(link)
            if here in told:
                self.tell_lost(here, there)
        return link

    def tell_lost(self, here: str, there: str) -> None:
        """The late news that a connection is gone: the oldest that ``here`` has not learned of."""
        links = self._untold[here, there]
        link = links.pop(0)
        if not links:
            del self._untold[here, there]
        if here == CLIENT:
            self.watch.link_lost(link)
            self.client_links.pop(link, None)
            self.table.remove(link)
            self._tell_calls(e.LinkLost(link, link in self._ended_in_order))
        elif here in self.nodes:
            node = self.nodes[here]
            if link in node.links:
                self._give(node, e.CallerLost(link) if there == CLIENT else e.PeerLost(link))

    def link(self, one: str, other: str) -> int:
        return self._connections[frozenset((one, other))]

    def connected(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._connections

    def untold(self) -> list[tuple[str, str]]:
        """Who has not yet learned that its connection to whom is gone."""
        return [(here, there) for here, there in self._untold if here == CLIENT or here in self.nodes]

    def view(self, name: str) -> ReplicaView:
        """What the client knows of a replica."""
        view = self.table.get(self.link(CLIENT, name))
        assert view is not None
        return view

    def freeze(self, name: str) -> None:
        """A replica stops (a pause, SIGSTOP): it handles nothing, and what it has not sent yet does not leave."""
        self.nodes[name].frozen = True
        self.held |= {f"{name}>{other}" for other in [CLIENT, *self.nodes] if other != name}

    def thaw(self, name: str) -> None:
        """It goes on: all input that came in the meantime is handled before slots are filled."""
        node = self.nodes[name]
        node.frozen = False
        self.held -= {route for route in self.held if route.startswith(f"{name}>")}
        inbox, node.inbox = node.inbox, []
        for event in [*inbox, e.TimePassed(), e.InputSettled()]:
            self._give(node, event)

    def drain(self, name: str) -> None:
        self._give(self.nodes[name], e.DrainRequested())

    def push_back(self, name: str, seconds: float) -> None:
        self._give(self.nodes[name], e.PushbackRequested(seconds))

    # ---- calls ------------------------------------------------------------------------------------------------

    def call(
        self,
        policy: Policy | None = None,
        *,
        at: str = "abcdefgh",
        method: str = "read",
        timeout: float = 10.0,
    ) -> int:
        """Make a call and return its number; ``at`` is the order in which replicas are chosen."""
        number = len(self.calls) + 1
        idempotent = next(item.info.idempotent for item in self._methods if item.info.name == method)
        request = CallRequest(
            CallId(NONCE, number),
            method,
            idempotent,
            b"arguments",
            policy if policy is not None else Plain(),
            self.now + timeout,
            stoppable=next(item.info.stoppable for item in self._methods if item.info.name == method),
        )
        self.calls[number] = CallCore(
            request, self.table, self.stats, rounds_max=self._rounds_max, learning=self.learning
        )
        self.table.order = at
        self._step_call(number, e.CallRequested())
        return number

    def cancel(self, number: int) -> None:
        """The user no longer wants a call."""
        self._step_call(number, e.CallerCancelled())

    def outcome(self, number: int) -> c.Outcome | None:
        return self.watch.outcomes.get(CallId(NONCE, number))

    def ended(self, number: int) -> c.OutcomeKind | None:
        outcome = self.outcome(number)
        return outcome.kind if outcome is not None else None

    def at_rest(self) -> bool:
        """True when every call has its outcome, no handler runs, nothing is on its way and no drain goes on."""
        done = all(call.state == CallState.DONE for call in self.calls.values())
        drained = all(node.core.draining == node.drained and not node.handlers for node in self.nodes.values())
        return done and drained and not self.flights

    # ---- messages ---------------------------------------------------------------------------------------------

    def pick(self, route: str, kind: type[m.Message] | None = None, copy: str | None = None) -> Flight:
        """The oldest message on a directed link, of a type and about a copy if asked for."""
        for flight in self.flights:
            wanted = kind is None or isinstance(flight.message, kind)
            if flight.route == route and wanted and (copy is None or flight.copy == copy_id(copy)):
                return flight
        raise LookupError(f"no such message on {route}: {[flight.message for flight in self.flights]}")

    def under_way(self, route: str) -> list[str]:
        """The types of the messages on a directed link, oldest first."""
        return [type(flight.message).__name__ for flight in self.flights if flight.route == route]

    def deliver(self, route: str, kind: type[m.Message] | None = None, copy: str | None = None) -> None:
        self.arrive(self.pick(route, kind, copy))

    def drop(self, route: str, kind: type[m.Message] | None = None, copy: str | None = None) -> None:
        """Lose one message, which a real link does only together with itself."""
        self._lose(self.pick(route, kind, copy))

    def hold(self, *routes: str) -> None:
        """``flush`` leaves these directed links alone."""
        self.held.update(routes)

    def release(self, *routes: str) -> None:
        self.held.difference_update(routes)

    def arrive(self, flight: Flight) -> None:
        self.flights.remove(flight)
        target = flight.route[2]
        if target == CLIENT:
            self._arrive_at_client(flight)
        elif (event := driving.replica_event(flight.link, flight.message)) is not None:
            self._give(self.nodes[target], event)

    def _lose(self, flight: Flight) -> None:
        self.flights.remove(flight)
        if isinstance(flight.message, m.Submit):
            self.watch.copy_lost(flight.message.copy)

    def _arrive_at_client(self, flight: Flight) -> None:
        view = self.table.get(flight.link)
        assert view is not None
        driving.tell_view(view, flight.message, self.now)
        copy = flight.copy
        if copy is not None:
            event = driving.call_event(flight.link, flight.message, bad=BAD_ANSWER.payload)
            self._step_call(copy.number, event)

    def settle(self, *names: str) -> None:
        """All input has been handled: fill slots (of every replica that is not frozen, unless named)."""
        for name in names or tuple(self.nodes):
            if not self.nodes[name].frozen:
                self._give(self.nodes[name], e.InputSettled())

    def flush(self) -> None:
        """Deliver and settle until nothing moves but what is held; stopped handlers end. Then S11 must hold."""
        while True:
            ready = [flight for flight in self.flights if flight.route not in self.held]
            for flight in ready:
                if flight in self.flights:
                    self.arrive(flight)
            self.settle()
            stopped = [
                (name, copy)
                for name, node in self.nodes.items()
                for copy in node.stopping
                if node.handlers[copy].submit.method not in UNSTOPPABLE and not node.frozen
            ]
            for name, copy in stopped:
                self._finish(name, copy, None)
            if not stopped and all(flight.route in self.held for flight in self.flights):
                break
        if not self.held:
            self.watch.check_quiet()

    # ---- handlers and time ------------------------------------------------------------------------------------

    def finish(self, name: str, copy: str, outcome: e.Answer | e.Fault | None = ANSWER) -> None:
        """A handler ends: with an answer, a fault, or None for one that was stopped."""
        self._finish(name, copy_id(copy), outcome)

    def _finish(self, name: str, copy: CopyId, outcome: e.Answer | e.Fault | None) -> None:
        node = self.nodes[name]
        del node.handlers[copy]
        node.stopping.discard(copy)
        self._give(node, e.WorkFinished(copy, outcome))

    def running(self, name: str) -> list[CopyId]:
        """The copies whose handlers run at a replica and have not been told to stop."""
        node = self.nodes[name]
        return [copy for copy in node.handlers if copy not in node.stopping]

    def enable_stop(self, name: str, copy: str) -> None:
        """A handler in a thread says how it can be stopped."""
        self._give(self.nodes[name], e.StopEnabled(copy_id(copy)))

    def state(self, name: str, copy: str) -> CopyState | None:
        return self.nodes[name].core.copy_state(copy_id(copy))

    def advance(self, seconds: float) -> None:
        """Time passes: every core is woken when it asked for it, and must then ask for a later time."""
        end = self.now + seconds
        while True:
            alarms = self._alarms()
            at = min((when for when, _, _ in alarms), default=end)
            if at > end:
                break
            self.now = max(self.now, at)
            due = [(ring, core) for when, ring, core in alarms if when <= self.now]
            for ring, core in due:
                ring()
                next_at = core.wake_at
                demand(next_at is None or next_at > self.now, "wake_at", f"asks for {next_at} at {self.now}")
            if not due:
                break
        self.now = end

    def lag(self, seconds: float) -> None:
        """Time passes, and nobody is woken yet: what arrives next is handled before timers that are overdue."""
        self.now += seconds

    def _alarms(self) -> list[tuple[float, Callable[[], None], CallCore | ReplicaCore]]:
        """Who wants to be woken, when, and how."""
        alarms: list[tuple[float, Callable[[], None], CallCore | ReplicaCore]] = []
        for number, call in self.calls.items():
            if call.state != CallState.DONE:
                alarms.append((call.wake_at, partial(self._step_call, number, e.TimePassed()), call))
        for node in self.nodes.values():
            at = node.core.wake_at
            if at is not None and not node.frozen:
                alarms.append((at, partial(self._wake, node), node.core))
        return alarms

    def _wake(self, node: Node) -> None:
        self._give(node, e.TimePassed())
        self._give(node, e.InputSettled())

    # ---- the drivers ------------------------------------------------------------------------------------------

    def _give(self, node: Node, event: e.ReplicaEvent) -> None:
        if node.frozen:
            if not isinstance(event, e.InputSettled | e.TimePassed):
                node.inbox.append(event)
            return
        before = node.core.snapshot()
        name = node.identity.name
        try:
            commands = node.core.step(event, self.now)
        except RemoteViolation as error:
            demand(node.core.snapshot() == before, "errors", f"{error}, and the state has changed")
            self.violations.append(str(error))
            self.cut(CLIENT, name)
            return
        if isinstance(event, e.CallerLost | e.PeerLost):
            node.links.pop(event.link, None)
            node.partners.pop(event.link, None)
        elif isinstance(event, e.PeerConnected):
            others = [link for link, peer in node.partners.items() if peer.name == event.peer.name]
            for link in others:
                if node.partners[link] != event.peer:
                    del node.partners[link]
            node.partners[event.link] = event.peer
        self._tell(name, event, commands, node.links)
        self.watch.replica_stepped(node, event, commands)
        for command in commands:
            self._execute(node, command)

    def _execute(self, node: Node, command: c.ReplicaCommand) -> None:
        match command:
            case c.SendPeer(link, message) | c.SendCaller(link, message):
                self._post(node.identity.name, node.links[link], link, message)
            case c.StartWork(submit):
                node.handlers[submit.copy] = command
            case c.StopWork(copy):
                node.stopping.add(copy)
            case c.FinishDrain():
                node.drained = True

    def _post(self, source: str, target: str, link: int, message: m.Message) -> None:
        if self._connections.get(frozenset((source, target))) == link:
            self.flights.append(Flight(f"{source}>{target}", link, message))

    def _tell_calls(self, event: e.CallEvent) -> None:
        for number, call in list(self.calls.items()):
            if call.state != CallState.DONE:
                self._step_call(number, event)

    def _step_call(self, number: int, event: e.CallEvent) -> None:
        call = self.calls[number]
        commands = call.step(event, self.now)
        self._tell(CLIENT, event, commands, self.client_links)
        self.watch.call_stepped(call, commands, self.client_links)
        unsent: list[CopyId] = []
        for command in commands:
            match command:
                case c.SendCopy(link, submit):
                    if not self._send_copy(link, submit):
                        unsent.append(submit.copy)
                case c.CancelCopy(link, copy):
                    self._post(CLIENT, self.client_links.get(link, "?"), link, m.Cancel(copy))
        for copy in unsent:
            self._step_call(number, e.CopyUnsent(copy))

    def _send_copy(self, link: int, submit: m.Submit) -> bool:
        """Put a copy on its way; False when the client's driver could not."""
        target = self.client_links.get(link, "?")
        if target == "?" or target in self.outbox_full:
            self.watch.copy_lost(submit.copy)
            return False
        if self._connections.get(frozenset((CLIENT, target))) != link:
            self.watch.copy_lost(submit.copy)
        self._post(CLIENT, target, link, submit)
        return True

    def _tell(
        self,
        name: str,
        event: e.ReplicaEvent | e.CallEvent,
        commands: Sequence[c.ReplicaCommand | c.CallCommand],
        links: dict[int, str],
    ) -> None:
        if commands or not isinstance(event, e.InputSettled | e.TimePassed | e.ReplicaAvailable | e.LinkLost):
            self.trace.append(f"{name}  {tell_event(event)}")
        for command in commands:
            self.trace.append(f"     {tell_command(command, links.get(getattr(command, 'link', 0), '?'))}")
