import json
import re
from pathlib import Path
from typing import Any

import pytest

from cluster.demo.settings import VARIABLE, DemoSettings
from tiedreq.errors import BadOption
from tiedreq.laws import Exponential, parse_law
from tiedreq.slowness import PauseSpec, SlowSpec

NEEDED: dict[str, Any] = {"index": "demo.sqlite", "replica": "r1"}


def read(values: Any) -> DemoSettings:
    return DemoSettings.from_environment({VARIABLE: values if isinstance(values, str) else json.dumps(values)})


def test_settings_reach_a_replica_unchanged() -> None:
    settings = DemoSettings(
        index=Path("some where/demo.sqlite"),
        replica="r1",
        service=parse_law("lognormal(mean=5ms,sd=2ms)*10@0.05"),
        slow=(SlowSpec(0, 3), SlowSpec(1, 2.5)),
        pause=(PauseSpec(0.2, 5.0),),
        seed=7,
    )
    assert DemoSettings.from_environment(settings.environment()) == settings


def test_only_index_and_replica_are_needed() -> None:
    settings = read(NEEDED)
    assert settings == DemoSettings(Path("demo.sqlite"), "r1")
    assert (settings.service, settings.slow_factor, settings.pause_spec) == (Exponential(0.010), 1.0, None)


def test_a_replica_finds_what_is_about_it() -> None:
    values = {**NEEDED, "slow": ["0:3", "1:2"], "pause": ["1:200ms@5s", "2:100ms@1s"]}
    settings = read(values)
    assert settings.slow_factor == 2
    assert settings.pause_spec == PauseSpec(0.2, 5.0, 1)
    assert read({**values, "replica": "r10"}).slow_factor == 1
    assert read({**NEEDED, "pause": "200ms@5s", "replica": "alone"}).pause_spec == PauseSpec(0.2, 5.0)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ("{", "not JSON"),
        ([], "not a JSON object"),
        ({"index": "x"}, "replica: is missing"),
        ({"replica": "r0"}, "index: is missing"),
        ({**NEEDED, "index": 5}, "index: 5 is not a text"),
        ({**NEEDED, "replica": ""}, "replica: '' is not a text"),
        ({**NEEDED, "servise": "exp(1ms)"}, "unknown option servise"),
        ({**NEEDED, "service": "exp(1)"}, "service: exp mean: '1' has no unit"),
        ({**NEEDED, "service": 5}, "service: 5 is not a text"),
        ({**NEEDED, "slow": "x"}, "slow: 'x' is not INDEX:FACTOR"),
        ({**NEEDED, "slow": [1]}, "slow: [1] is not a text or a list of texts"),
        ({**NEEDED, "slow": ["1:2", "1:3"]}, "slow: 1:2 and 1:3 are both about replica 'r1'"),
        ({**NEEDED, "pause": ["200ms@5s", "1:100ms@5s"]}, "are both about replica 'r1'"),
        ({**NEEDED, "replica": "north", "slow": "0:3"}, "the replica's name 'north' ends in no number"),
        ({**NEEDED, "seed": "7"}, "seed: '7' is not a whole number"),
        ({**NEEDED, "seed": True}, "seed: True is not a whole number"),
    ],
)
def test_bad_settings_are_refused_and_named(values: Any, why: str) -> None:
    with pytest.raises(BadOption, match=f"^{VARIABLE}: .*{re.escape(why)}"):
        read(values)


def test_missing_settings_say_how_to_set_them() -> None:
    with pytest.raises(BadOption, match=r"TIEDREQ_DEMO is not set: scripts/up sets it; by hand, write"):
        DemoSettings.from_environment({})
