"""The rules of the design, sentence by sentence, and which broken cores break each.

A rule whose breach shows in no step that a core takes, or that no core but a driver keeps, is out of reach of the
means: then it names the tests that would catch it.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """``sentence`` of section ``place``; the names of ``mutants`` that break it, or of ``tests`` that would tell."""

    place: str
    sentence: str
    mutants: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


def _rule(place: str, sentence: str, *mutants: str) -> Rule:
    return Rule(place, sentence, mutants)


def _beyond(place: str, sentence: str, *tests: str) -> Rule:
    return Rule(place, sentence, (), tests)


IDENTITY = (
    _rule(
        "4",
        "Events of an old epoch, round or incarnation change nothing",
        "round ignored",
        "notices of lost links",
        "epoch ignored",
        "old epochs are heeded",
    ),
    _rule(
        "4",
        "including the late news that an old link was lost",
        "old loss ends new copies",
        "old loss forgets new link",
    ),
    _rule(
        "4",
        "An untied copy (backup) has an identity of its own",
        "notice ends backup",
        "backup carries the tie",
    ),
    _rule("4", "A tied copy is (call id, round, rank)", "failover reuses the round"),
    _rule("4", "What a caller knows of a replica belongs to the connection, not to the name", "draining by name"),
    _rule("4", "No rule relies on the order of two notices", "late next undoes a start"),
    _rule("4", "Hello: a challenge-response proof of the cluster token", "any token will do"),
)
COPIES = (
    _rule("5", "Submit at a full or draining replica: REFUSED", "queue without limit", "drain takes work"),
    _rule("5", "with a hint when to come back", "refused without hint"),
    _rule("5", "deadline passed: EXPIRED", "expired still runs", "runs past its deadline"),
    _rule("5", "QUEUED, slot free: RUNNING", "last come first served"),
    _rule("5", "peer started (or announced Next): DROPPED", "drop without start"),
    _rule("5", "Started / Cancel before its Submit: marker", "no markers", "cancels are forgotten"),
    _rule(
        "5.1", "Started stands before StartWork in the same command list", "started after start work", "silent start"
    ),
    _rule("5.2", "a replica handles all input that is ready before it fills slots", "starts before input has settled"),
    _rule("5.3", "when it hears that a lower rank started, it yields", "no yield", "stop enabled in vain"),
    _rule("5.3", "a copy that has sent part of its answer never yields", "yields after its first item"),
    _rule(
        "5.3",
        "A double start is resolved in one place; both can't stop",
        "every rank yields",
        "yield by time",
    ),
    _rule(
        "5.3",
        "A running copy that hears of a higher rank goes on and answers Started again",
        "lower rank stays silent",
        "no resync",
    ),
    _rule(
        "5.3",
        "one that can't be stopped, and one of an exclusive tie never yield",
        "unstoppable yields",
        "yields against its policy",
    ),
    _rule("5.4", "a Next notice when the copy reaches the head of the queue", "no next", "next meets silence"),
    _rule("5.4", "a still-queued copy of higher rank then drops", "deaf to next", "next of any rank"),
    _rule("5.5", "Markers are bounded in number", "markers without number"),
    _rule("5.5", "and age", "markers for ever"),
    _rule("5.5", "act only if they come from the partner that the Submit names", "marker of any peer"),
    _rule("5.7", "Each copy ends in exactly one terminal state and its caller is told which", "ends in silence"),
    _rule("5.7", "Dropped names its cause", "drops without cause"),
    _rule("5.7", "only started starts a backup clock", "any drop starts the clock"),
    _rule(
        "5.7",
        "A handler that can't be stopped keeps its slot until it returns",
        "slot not released",
        "slot released early",
    ),
    _rule("5.7", "Terminal states leave a bounded tombstone", "tombstones ignored", "tombstones without number"),
    _rule("5.7", "refusals too", "refusals are forgotten"),
    _rule("5.7", "Dropped and Yielded are not failures: never retried", "dropped is a failure"),
    _rule("5.7", "Cancelled: the caller's Cancel ends a copy that waits, too", "cancel ignored while queued"),
    _rule(
        "5.8",
        "Every message to a caller carries queue length, free slots",
        "counts the slots twice",
        "says nothing of its queue",
    ),
    _rule("5.8", "now and then the measured notice latency to each peer", "latencies untold"),
    _rule("5.8", "no backups for n seconds", "pushback untold", "pushback forgotten", "pushback ignored"),
    _rule("5.8", "Result carries the service time as the replica measured it", "wait counts as service"),
    _rule("5.9", "A caller's link lost: queued copies go, running ones are cancelled", "caller lost keeps copies"),
    _rule("5.10", "Drain: say so to peers and callers", "drains in silence"),
    _rule(
        "5.10",
        "end queued and CLAIMING copies REFUSED",
        "drain drops",
        "drain forgets its queue",
        "drain forgets claims",
    ),
    _rule("5.10", "finish what runs or was granted", "drain stops what runs", "drain ends the granted"),
    _rule("5.10", "go on answering Claims", "drain is deaf to claims"),
    _rule(
        "5.10",
        "(what a replica never spoke of when its drain is over has never started)",
        "any loss is a drain",
        "last word is not heeded",
    ),
    _beyond(
        "5.5",
        "oldest out first; die with its incarnation",
        "tests/properties/test_memory.py::TestMarkers",
        "tests/core/test_replica_memory.py::test_rule_5_markers_die_with_the_incarnation_that_left_them",
    ),
    _beyond(
        "5.6",
        "Dropping a copy costs the same whatever the queue's length",
        "tests/properties/test_workqueue.py::test_what_leaves_the_queue_costs_the_same_whatever_its_length",
        "tests/properties/test_workqueue.py::test_dropping_a_copy_costs_the_same_whatever_the_queue_of_its_replica",
    ),
    _beyond("5.10", "flush the outboxes, exit 0", "tests/net/test_drain.py", "tests/system/test_endings.py"),
)
EXCLUSIVE = (
    _rule("5, exclusive", "Copy 1, when its turn comes, is CLAIMING", "starts without claim"),
    _rule("5, exclusive", "Granted only for a copy 0 that the arbiter knows has not started", "grants the started"),
    _rule("5, exclusive", "to one grantee", "grants twice"),
    _rule("5, exclusive", "asking again gets the same answer", "second ask is denied"),
    _rule("5, exclusive", "copy 0 then ends DROPPED (granted away)", "grants and keeps"),
    _rule(
        "5, exclusive",
        "A granted copy goes to the head of the queue",
        "granted goes to the tail",
        "grant ignored",
    ),
    _beyond("5, exclusive", "and is deaf to Started", "tests/core/test_exclusive.py::test_granted_is_deaf_to_started"),
    _rule("5, exclusive", "A Claim that overtakes its Submit is parked and answered", "parked claim unanswered"),
    _rule("5, exclusive", "Unknown is never granted", "grants the unknown", "grants the forgotten"),
    _rule("5, exclusive", "Denied(started) ends copy 1 DROPPED", "denied is refused"),
    _rule(
        "5, exclusive",
        "Denied(unknown), or the arbiter's link down or lost: REFUSED, never run",
        "denied unknown runs",
        "unknown is dropped",
        "arbiter lost unnoticed",
        "runs without arbiter",
    ),
    _rule("5, exclusive", "the caller then suspects the arbiter", "lost arbiter is trusted"),
    _beyond(
        "5, exclusive",
        "Claim (tie, the arbiter's incarnation as the Submit named it, its own incarnation)",
        "tests/core/test_exclusive.py::test_a_claim_for_another_incarnation_or_by_another_is_not_granted",
    ),
)
CALLS = (
    _rule("6.1", "Never two waiting copies of one tie at one replica", "two copies at one replica"),
    _rule("6.2", "Once copy 0 is known to have started, copy 1 is not sent", "sent after a start"),
    _rule(
        "6.2",
        "Copy 0 refused before copy 1 was sent: copy 1 goes at once in the same round",
        "refusal holds the next back",
    ),
    _rule("6.2", "An unsent copy is not a living copy", "unsent counts as alive"),
    _rule(
        "6.3",
        "the clock runs from the start of a copy, or from the partner's Dropped(started) or Yielded",
        "backup from the sending",
        "backup by the starter only",
    ),
    _rule("6.3", "A ceiling timer from the send covers a frozen queue", "no ceiling"),
    _rule("6.3", "The backup goes to a third replica if there is one", "backup to a tried replica"),
    _rule("6.3", "waits in the ordinary queue", "backups jump the queue"),
    _rule("6.3", "up to max_per_call", "backups without number"),
    _rule("6.3", "A backup doesn't count as a living copy for failover", "backup keeps the round"),
    _rule("6.4", "Deposits: budget x useful busy time", "nothing is earned", "whole work is earned"),
    _rule(
        "6.4",
        "Withdrawals: expected busy time when a backup leaves",
        "nothing is withdrawn",
        "withdrawn twice",
    ),
    _rule("6.4", "(corrected when it ends)", "never corrected"),
    _rule("6.4", "and the work lost to double starts", "double starts are free", "yielded work is forgotten"),
    _rule("6.4", "empty means 'wait on', never an error", "empty bucket pays", "empty bucket ends the call"),
    _rule("6.4", "Empty for ties: untied for a while", "ties in debt"),
    _rule(
        "6.4",
        "A governor lowers the budget when backups stop winning",
        "no governor",
        "governor stays low",
    ),
    _rule("6.4", "and shows its state and reason", "governor without reason"),
    _rule("6.4", "Failovers after a refusal draw on the same bucket", "refusals are free"),
    _rule("6.4", "after a lost link on a small one of their own", "lost links are free"),
    _rule("6.4", "a failover that the bucket denies ends the call at once", "denied failover waits"),
    _rule("6.6", "First acceptable answer wins", "first answer ends all"),
    _rule("6.6", "A retryable failure doesn't end the race while another copy lives", "first failure ends all"),
    _rule("6.6", "an application error does", "error is tried again"),
    _rule("6.6", "no tied copy left and time left means a new round", "never fails over"),
    _rule("6.6", "at untried replicas first", "tried replicas first"),
    _rule("6.6", "any that is reachable and not draining", "draining is asked"),
    _rule("6.6", "none reachable: wait, no round is spent", "waiting spends a round"),
    _rule("6.6", "(rounds per call are limited)", "rounds without number"),
    _rule("6.6", "One outcome per call", "two outcomes"),
    _rule("6.6", "losers are cancelled", "losers not cancelled", "cancel keeps copies"),
    _rule("6.7", "Deadlines travel as remaining seconds", "whole time travels"),
    _rule(
        "6, unsafe",
        "What may run twice is declared by the service and checked on both sides",
        "unsafe is accepted",
        "unsafe is tied",
        "unsafe is tried again",
    ),
    _beyond(
        "6.1",
        "two random candidates, lower of ...; slow or failing replicas go on probation, at most a third",
        "tests/properties/test_picker.py",
        "tests/core/test_health.py::test_a_third_at_most",
    ),
    _beyond("6.2", "Stagger: copy 1 reaches B not before A's Started could", "tests/core/test_stagger.py"),
    _beyond("6.3", "Delay: the one that saves most", "tests/core_learning/test_delay.py"),
    _beyond(
        "6.4",
        "a ticket settles once; a lowered budget comes back from every state",
        "tests/properties/test_brake.py::TestBrake",
        "tests/properties/test_governor.py::test_from_every_state_the_budget_comes_back_when_backups_win",
    ),
    _beyond("6.5", "Learning", "tests/core_learning/test_latency.py", "tests/core_learning/test_learning.py"),
    _beyond("6.6", "losers are cancelled each in a scope of its own", "tests/driver/test_every_point.py"),
    _beyond(
        "6.7",
        "a surrounding Trio deadline counts; nested calls inherit it and default to Plain",
        "tests/net/test_deadlines.py",
        "tests/net/test_nested.py",
    ),
    _beyond("6.8", "Auto: never worse than plain beyond a stated bound", "tests/agreement/test_promises.py"),
    _beyond("6, unsafe", "refused before a byte is sent: UnsafeToDuplicate", "tests/net/test_usage.py"),
)
LINKS = (
    _rule("7", "Heartbeats through our own reader", "no heartbeats", "heartbeats are not answered"),
    _rule(
        "7",
        "a silent peer is lost after a few intervals",
        "silence is not noticed",
        "one miss is silence",
        "own stall is silence",
    ),
    _rule("7", "Reconnect", "never dialed again"),
    _rule("7", "with jittered back-off", "backoff without jitter", "backoff does not grow"),
    _rule("7", "that resets only after the link has been useful", "backoff resets at once", "backoff never resets"),
    _rule("7", "(a new incarnation displaces the old)", "old incarnation stays", "incarnation is forgotten"),
    _rule(
        "7",
        "A mesh link that is down costs duplicates (counted), never lost calls",
        "waits for the mesh",
        "unsent notices are not counted",
    ),
    _beyond("7", "One link per pair; the lower name dials", "tests/net/test_raw_caller.py"),
    _beyond("7", "Nothing but tear-down may interrupt a send", "tests/net_layer/test_link.py"),
)
RULES: tuple[Rule, ...] = (*IDENTITY, *COPIES, *EXCLUSIVE, *CALLS, *LINKS)


def of_mutant(name: str) -> Rule | None:
    """The rule that a mutant breaks."""
    return next((rule for rule in RULES if name in rule.mutants), None)
