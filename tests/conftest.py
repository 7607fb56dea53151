"""What every test gets: the long kinds' options, hypothesis profiles, and a guard against left-over processes.

* Markers `system`, `soak`, `agreement` and `hostile` are the long kinds. They run with `--all` (quick ones too),
  `--long` (long ones alone) or when `-m` asks for something; otherwise they are deselected.
* `--minutes N` is the time each long *kind* may take; the fixture `minutes` is one test's share of it.
* Hypothesis: profile `dev`, or `ci` where $CI is set (no random seed, so a red run is red again), or `nightly` with
  `--all`; `--hypothesis-profile NAME` overrides. `nightly` tries the more examples the more minutes there are, and a
  test then has as much time as one of the long kinds.
* A test that leaves a process behind fails, and the process is killed (_processes.py).
* A test that hangs fails and tells where its tasks stood (_watchdog.py).
* A test that uses internet sockets in virtual time fails (_clocks.py).
* SIGINT and SIGHUP have their usual meaning for the programs that tests start, even if this process was started in the
  background of a script, or by nohup, where they are ignored.
"""

from __future__ import annotations

import inspect
import os
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from tests._clocks import CLOCKS, SocketWatch
from tests._processes import Descendants, describe, end
from tests._watchdog import with_deadline

LONG_KINDS = ("system", "soak", "agreement", "hostile")
MINUTES_DEFAULT = 5.0
GRACE_SECONDS = 120.0
NIGHTLY_EXAMPLES_PER_MINUTE = 400
NIGHTLY_EXAMPLES_MIN = 100

hypothesis.settings.register_profile("dev", deadline=None, max_examples=60, print_blob=True)
hypothesis.settings.register_profile(
    "ci", deadline=None, max_examples=60, derandomize=True, print_blob=True, database=None
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiedreq")
    group.addoption("--all", action="store_true", help="run the long kinds too: " + ", ".join(LONG_KINDS))
    group.addoption("--long", action="store_true", help="run the long kinds alone")
    group.addoption(
        "--minutes",
        type=float,
        default=MINUTES_DEFAULT,
        metavar="N",
        help=f"minutes that each long kind may take (default: {MINUTES_DEFAULT:g})",
    )


def pytest_configure(config: pytest.Config) -> None:
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    for number, handler in usual.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if not config.option.minutes > 0:
        raise pytest.UsageError(f"--minutes needs a number above 0, not {config.option.minutes:g}")
    examples = max(NIGHTLY_EXAMPLES_MIN, round(NIGHTLY_EXAMPLES_PER_MINUTE * config.option.minutes))
    hypothesis.settings.register_profile("nightly", deadline=None, max_examples=examples, print_blob=True)
    if not getattr(config.option, "hypothesis_profile", None):
        profile = "ci" if os.environ.get("CI") else "nightly" if config.option.all else "dev"
        hypothesis.settings.load_profile(profile)


def pytest_report_header(config: pytest.Config) -> str:
    option = config.option
    if option.all or option.long:
        return f"long kinds: {', '.join(LONG_KINDS)}, {option.minutes:g} min each; profile {profile_name()}"
    return f"long kinds left out (--all adds them); profile {profile_name()}"


def profile_name() -> str:
    return hypothesis.settings.get_current_profile_name()


def kinds_of(item: pytest.Item) -> list[str]:
    return [kind for kind in LONG_KINDS if item.get_closest_marker(kind)]


def has_many_examples(item: pytest.Item) -> bool:
    return profile_name() == "nightly" and hypothesis.is_hypothesis_test(getattr(item, "obj", None))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    option = config.option
    if option.long:
        wanted = [item for item in items if kinds_of(item)]
    elif option.all or option.markexpr:
        wanted = list(items)
    else:
        wanted = [item for item in items if not kinds_of(item)]
    dropped = [item for item in items if item not in set(wanted)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = wanted
    for item in items:
        if (kinds_of(item) or has_many_examples(item)) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(GRACE_SECONDS + 60 * option.minutes))
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = with_deadline(item.obj, timeout_of(item))


def timeout_of(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    if marker is None:
        return float(item.config.getini("timeout"))
    return float(marker.args[0] if marker.args else marker.kwargs["timeout"])


@pytest.fixture
def minutes(request: pytest.FixtureRequest) -> float:
    """How long this test may go on, in minutes: its share of what `--minutes` grants to its kind."""
    sharing: Counter[str] = Counter()
    for item in request.session.items:
        if "minutes" in getattr(item, "fixturenames", ()):
            sharing.update(kinds_of(item))
    shares = [sharing[kind] for kind in kinds_of(request.node)]
    assert shares, "`minutes` is for the long kinds: mark the test " + " or ".join(LONG_KINDS)
    granted: float = request.config.option.minutes
    return granted / max(shares)


descendants = Descendants()
sockets = SocketWatch()


@pytest.fixture(autouse=True)
def no_socket_in_virtual_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that mixes the two: what the kernel takes does not fit into a time that jumps."""
    if CLOCKS.isdisjoint(request.fixturenames):
        yield
        return
    with sockets.watching() as used:
        yield
    if used:
        pytest.fail(f"sockets in virtual time: {'; '.join(used[:3])}", pytrace=False)


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Fail a test that leaves a process behind; one of a wider fixture was there before and may stay."""
    before = descendants.alive()
    yield
    left = descendants.alive() - before
    # One that was killed a moment ago may need another moment to be gone.
    patience = time.monotonic() + 0.5
    while left and time.monotonic() < patience:
        time.sleep(0.02)
        left = descendants.alive(look=True) - before
    if left:
        told = "; ".join(describe(process) for process in left)
        for process in left:
            end(process)
        pytest.fail(f"left behind: {told}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A lone surrogate in what a test printed or logged can't be sent by the worker that ran it."""
    report = yield
    report.sections = [(name, sendable(text)) for name, text in report.sections]
    return report


def sendable(text: str) -> str:
    """The text with what UTF-8 can't hold written out as an escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
