"""The compiled wheel: it can be built, what it has is compiled, histories are the same, and calls over sockets work."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from click.testing import CliRunner

import tiedreq
from tiedreq.cli import command
from tiedreq.sim.run import run_seed

ROOT = Path(__file__).resolve().parent.parent.parent
SEEDS = 40
HISTORIES = f"""
import sys
sys.path.insert(0, sys.argv[1])
import tiedreq
from tiedreq.core import link, picker, policy, replica
from tiedreq.net import desk, executions, framing, outbox, reception
from tiedreq.sim import clock
from tiedreq.sim.run import run_seed
from tiedreq.wire import codec, hot
compiled = link, picker, policy, replica, clock, codec, desk, executions, framing, hot, outbox, reception
print(tiedreq.compiled, all(m.__file__.startswith(sys.argv[1]) and not m.__file__.endswith(".py") for m in compiled))
for seed in range(1, {SEEDS + 1}):
    result = run_seed(seed)
    print(seed, result.digest, result.steps, result.counts, result.violations)
"""

CALLS = """
import copy
import pickle
import sys
sys.path.insert(0, sys.argv[1])
import trio
import tiedreq
from tiedreq.sim.world import WorldOptions

for one in (tiedreq.Plain(observe_only=True), tiedreq.Hedged(), tiedreq.Tied(copies=3), tiedreq.Auto(),
            tiedreq.Backup(after=0.5), tiedreq.ClientLimits(), tiedreq.ReplicaLimits(tombstones_max=7), WorldOptions()):
    assert copy.copy(one) == copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one, one

service = tiedreq.Service("compiled")


@service.method(idempotent=True)
async def double(ctx, args):
    if args is None:
        raise tiedreq.Failure("nothing", "to double", details=[1])
    await trio.sleep(30 if args == "long" else 0.001)
    return [args, args]


@service.stream(idempotent=True)
async def count(ctx, args):
    for number in range(args):
        yield number + 1


async def told(kind, function, *args, **options):
    try:
        print(await function(*args, **options))
    except kind as error:
        print(type(error).__name__, getattr(error, "code", ""), getattr(error, "details", ""))


async def main():
    async with trio.open_nursery() as nursery:
        handles = []
        for number in range(3):
            handles.append(await nursery.start(lambda task_status, n=number: tiedreq.serve(
                service, name=f"r{n}", task_status=task_status)))
        urls = {handle.name: handle.url for handle in handles}
        for handle in handles:
            handle.set_peers(urls)
        async with tiedreq.connect(list(urls.values())) as client:
            for args in (1, "text", bytes(100), bytes(300_000), {"a": [1.5, None]}):
                for policy in (None, tiedreq.Plain(), tiedreq.Tied(stagger=0.0), tiedreq.Tied(exclusive=True)):
                    value = await client.call("double", args, policy=policy, timeout=30)
                    assert value == [args, args], (args, value)
            for _ in range(3):
                async with trio.open_nursery() as calls:
                    for number in range(200):
                        calls.start_soon(client.tied_call, "double", number)
            async with client.tied_stream("count", 1000) as stream:
                print(sum([item async for item in stream]))
            await told(tiedreq.RemoteFailure, client.call, "double", None)
            await told(tiedreq.UsageError, client.call, 5)
            await told(tiedreq.UsageError, client.call, "double", object())
            await told(tiedreq.BadOption, client.call, "double", 1, timeout=-1)
            await told(tiedreq.BadOption, client.call, "double", 1, key=7)
            await told(tiedreq.BadOption, client.call, "double", 1, metadata=[1])
            await told(tiedreq.BadOption, client.call, "double", 1, policy=tiedreq.Tied)
            await told(tiedreq.UnknownMethod, client.call, "nothing")
            await told(tiedreq.DeadlineExceeded, client.call, "double", 1, timeout=0)
            async with trio.open_nursery() as calls:
                calls.start_soon(client.tied_call, "double", "long")
                await trio.sleep(0.05)
                calls.cancel_scope.cancel()
            stats = client.stats()
            print(stats["in_flight"], stats["calls"], stats["answered"], stats["cancelled"])
        nursery.cancel_scope.cancel()


trio.run(main)
"""


def missing() -> str | None:
    """Why the compiled wheel can't be built here, or None."""
    compiler = os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler.split()[0]) is None:
        return f"no C compiler: {compiler.split()[0]} is not on the PATH"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "no Python.h: the headers of this Python are not installed"
    absent = [name for name in ("mypyc", "setuptools", "pip") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def test_the_version_says_which_build_this_is() -> None:
    shown = CliRunner().invoke(command, ["--version"]).output
    assert shown == f"tiedreq, version {tiedreq.__version__}, {'compiled' if tiedreq.compiled else 'pure Python'}\n"
    assert tiedreq.compiled is (not str(sys.modules["tiedreq.core.replica"].__file__).endswith(".py"))


@pytest.mark.system
@pytest.mark.timeout(900)  # a minute or two of one core
def test_a_compiled_wheel_has_the_same_histories(tmp_path: Path) -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    assert not tiedreq.compiled, "these tests compare with the pure version"
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [
        *pip,
        "wheel",
        "--no-deps",
        "--wheel-dir",
        str(wheels),
        str(ROOT),
    ]  # isolated, as docs/performance.md has it
    variables = {**os.environ, "TIEDREQ_COMPILE": "1", "TIEDREQ_COMPILE_LEVEL": "0"}
    done = subprocess.run(build, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = wheels.iterdir()
    assert not wheel.name.endswith("-none-any.whl")
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", str(site), str(wheel)], check=True)
    told = subprocess.run([sys.executable, "-c", HISTORIES, str(site)], capture_output=True, text=True, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    first, *histories = told.stdout.splitlines()
    assert first == "True True"
    pure, made = (
        subprocess.run([sys.executable, "-c", CALLS, path], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        for path in (str(ROOT), str(site))
    )
    assert pure.returncode == 0, pure.stderr
    assert (made.stdout, made.stderr, made.returncode) == (pure.stdout, pure.stderr, 0)
    results = [run_seed(seed) for seed in range(1, SEEDS + 1)]
    assert histories == [f"{r.options.seed} {r.digest} {r.steps} {r.counts} {r.violations}" for r in results]
