"""The page in a headless Chromium, on a real cluster: charts are drawn, controls work, with the keyboard too.

With `TIEDREQ_SCREENSHOTS=DIR` its pictures are kept there, for people to look at.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.dashboard import missing
from tests.cluster._launcher import Up
from tests.dashboard.browser import Page, browser_path, open_page

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(missing()), reason="the extra dashboard is not installed"),
    pytest.mark.skipif(browser_path() is None, reason="no Chromium is installed here"),
]

DRAWN = """(() => {
  const canvas = document.querySelector('#%s canvas');
  if (!canvas || !canvas.width) return 0;
  const probe = document.createElement('canvas').getContext('2d');
  probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('%s').trim();
  probe.fillRect(0, 0, 1, 1);
  const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] > 200 && Math.hypot(data[i] - r, data[i + 1] - g, data[i + 2] - b) < 20) count++;
  return count;
})()"""
"""How many pixels of a chart have the color of a line."""

FILL = """(() => {
  const field = document.querySelector(`#%s [name=%s]`);
  field.value = %s;
  field.dispatchEvent(new Event('input', {bubbles: true}));
})()"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with open_page(tmp_path) as opened:
        opened.look()
        yield opened


def ctl(launcher: Up, *arguments: str) -> str:
    command = [sys.executable, "-m", "cluster.ctl", *arguments]
    return subprocess.run(command, cwd=launcher.cwd, capture_output=True, text=True, timeout=60, check=True).stdout


def status(launcher: Up) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ctl(launcher, "status", "--json"))
    return found


def said(page: Page, text: str) -> None:
    page.wait(f"document.getElementById('said').textContent === {json.dumps(text)}")


def fill(page: Page, form: str, **values: str) -> None:
    for name, value in values.items():
        page.run(FILL % (f"form-{form}", name, json.dumps(value)))
    page.run(f"document.querySelector('#form-{form} button[type=submit]').click()")


def press(page: Page, replica: str, verb: str) -> None:
    page.wait(
        f"""(() => {{ const button = document.querySelector('[aria-label="Replica {replica}"] [data-verb={verb}]');
        if (button.disabled || button.hidden) return false; button.click(); return true; }})()"""
    )


def state(replica: str) -> str:
    return f"""document.querySelector('[aria-label="Replica {replica}"] .pill').textContent"""


FOLLOWED = """(() => {
  const wanted = %s;
  const all = (found) => JSON.stringify([...found]);
  const texts = (query) => [...document.querySelectorAll(query)].map((one) => one.textContent);
  const labels = (chart) => texts(`#chart-${chart} .u-series .u-label`).slice(1);
  const peers = (card) => [...card.querySelectorAll('.links li')].map((link) => link.textContent.split(' ')[0]).sort();
  const options = (name) => texts(`#form-partition [name=${name}] option`);
  const cards = [...document.querySelectorAll('.card')];
  const seen = {
    cards: cards.map((card) => card.querySelector('h3').textContent),
    from: options('from'), to: options('to').slice(1),
    queue: labels('queue'), notice: labels('notice'),
  };
  return Object.values(seen).every((names) => all(names) === all(wanted))
    && document.getElementById('title').textContent.endsWith(` ${wanted.length} replicas`)
    && cards.every((card, index) => all(peers(card)) === all(wanted.filter((name) => name !== wanted[index])))
    && cards.every((card) => card.querySelector('.pill').textContent === 'up');
})()"""
"""Whether cards, links, charts and lists are those of these replicas."""


def followed(page: Page, replicas: int) -> None:
    page.wait(FOLLOWED % json.dumps([f"r{number}" for number in range(replicas)]))


def picture(page: Page, tmp_path: Path, name: str) -> None:
    page.screenshot(Path(os.environ.get("TIEDREQ_SCREENSHOTS", tmp_path)) / f"{name}.png")


def test_charts_races_and_controls(up: Callable[..., Up], page: Page, tmp_path: Path) -> None:
    launcher = up("--replicas", "3", "--slots", "2", "--json")
    url = launcher.event("ready")["dashboard"]
    page.open(ctl(launcher, "dashboard").strip())
    page.wait("document.getElementById('link').textContent === 'live'")
    assert page.run("location.hash") == "", "the token is taken out of the address"
    page.wait("document.querySelectorAll('.card').length === 3 && !document.getElementById('panel').disabled")
    assert page.run("document.querySelector('#chart-latency').parentElement.querySelector('.empty').hidden") is False
    assert page.run("document.getElementById('show-locked').hidden") is True, "with the token nothing is locked"
    assert "No races yet" in page.run("document.getElementById('race-caption').textContent")
    picture(page, tmp_path, "no-samples")

    fill(page, "work", service="exp(40ms)")
    said(page, "work takes exp(40ms), without pauses")
    fill(page, "traffic", rate="90", policy="tied-classic", work="true")
    said(page, "90 calls/s with tied-classic to work")
    fill(page, "latency", spec="4ms")
    said(page, "the latency between replicas is 4ms")
    page.wait(f"({DRAWN % ('chart-latency', '--c0')}) > 20")
    page.wait(f"({DRAWN % ('chart-curve', '--c0')}) > 20")
    for chart in ("queue", "running", "service", "lag", "notice"):
        page.wait(f"({DRAWN % (f'chart-{chart}', '--c2')}) > 20")
    page.wait("document.querySelector('#methods th[scope=row]')?.textContent === 'work'")
    found = status(launcher)
    assert found["work"]["service"] == "exp(40ms)" and found["faults"]["latency"] == "4ms"
    assert (found["traffic"]["rate"], found["traffic"]["policy"]) == (90, "tied-classic")

    page.wait("document.querySelectorAll('#race-list button').length > 2")
    page.wait(
        "document.querySelector('#race-picture svg .runs') && document.querySelector('#race-picture svg .notice')"
    )
    assert "starts at" in page.run("document.getElementById('race-story').textContent")
    picture(page, tmp_path, "light")

    page.run("document.querySelector('#race-list button').focus()")
    page.press("ArrowDown", 40)
    assert page.run("document.activeElement.getAttribute('aria-current')") == "true"
    assert page.run("document.getElementById('follow').checked") is False

    press(page, "r2", "pause")
    page.wait(f"{state('r2')} === 'paused'")
    press(page, "r2", "resume")
    page.wait(f"{state('r2')} === 'up'")
    fill(page, "partition", **{"from": "r0", "to": "r1"})
    said(page, "r0 is cut off from r1")
    page.wait("""document.querySelector('[aria-label="Replica r0"] .links .down')?.textContent.includes('r1')""")
    picture(page, tmp_path, "partition")
    page.run("document.getElementById('heal').click()")
    said(page, "all replicas reach each other again")
    page.wait("!document.querySelector('.links .down')")

    page.look(dark=True)
    page.wait(f"({DRAWN % ('chart-latency', '--c0')}) > 20")
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(18, 21, 27)"
    picture(page, tmp_path, "dark")
    page.look(width=390, height=844)
    page.wait("document.querySelector('#chart-latency canvas').clientWidth < 390")
    assert page.run("document.documentElement.scrollWidth") <= 390, "nothing makes a small screen scroll sideways"
    picture(page, tmp_path, "small")

    fill(page, "traffic", rate="0")
    said(page, "no traffic is driven")
    assert not page.errors
    assert all(request.startswith((url, "about:")) for request in page.requests)
    assert launcher.stop() == 0


def test_read_only_until_the_token_is_there(up: Callable[..., Up], page: Page) -> None:
    launcher = up("--replicas", "2", "--json")
    page.open(launcher.event("ready")["dashboard"])
    page.wait("document.getElementById('link').textContent === 'live' && !document.getElementById('locked').hidden")
    assert page.run("document.getElementById('panel').disabled") is True
    assert page.run("[...document.querySelectorAll('.actions button, #steps button')].every((one) => one.disabled)")
    assert page.run("document.getElementById('show-locked').hidden") is False, "where the buttons are it says why"
    why = page.run("document.getElementById('locked-why').textContent")
    command = why[why.index("“") + 1 : why.index("”")]
    told = subprocess.run(command, shell=True, cwd=launcher.cwd, capture_output=True, text=True, check=True).stdout
    assert json.loads((launcher.state / "control.json").read_text())["token"] in told, "the hint works as it stands"
    page.press("Tab", 9)
    assert page.run("document.activeElement.className") == "skip"

    def unlock(token: str) -> None:
        page.run(f"document.getElementById('token').value = {json.dumps(token)}")
        page.run("document.querySelector('#unlock button').click()")

    unlock("wrong")
    said(page, "the control token is missing or wrong")
    assert page.run("document.getElementById('panel').disabled") is True
    unlock(json.loads((launcher.state / "control.json").read_text())["token"])
    page.wait("!document.getElementById('panel').disabled && document.getElementById('locked').hidden")
    press(page, "r1", "drain")
    page.wait(f"{state('r1')} === 'drained'")
    press(page, "r1", "restart")
    page.wait(f"{state('r1')} === 'up'")
    assert launcher.stop() == 0
    page.wait("document.getElementById('link').textContent === 'the launcher does not answer'")


def test_the_steps_of_the_show(up: Callable[..., Up], page: Page) -> None:
    """Hedging melts, tying holds: three buttons drive the same load at the same work, with one policy each."""
    launcher = up("--replicas", "2", "--slots", "2", "--json")
    launcher.event("ready")
    page.open(ctl(launcher, "dashboard").strip())
    page.wait("document.getElementById('link').textContent === 'live' && !document.getElementById('panel').disabled")
    driven = []
    for policy in ("plain", "hedged-fixed", "tied"):
        page.run(f"document.querySelector('#steps [data-policy={policy}]').click()")
        page.wait(f"document.getElementById('step-said').textContent.includes('calls/s with {policy} to work')")
        page.wait(f"document.querySelector('#steps [data-policy={policy}]').getAttribute('aria-pressed') === 'true'")
        found = status(launcher)
        assert found["traffic"]["policy"] == policy
        driven.append((found["traffic"]["rate"], found["work"]["service"]))
    assert len(set(driven)) == 1 and driven[0][0] > 0 and "lognormal" in driven[0][1]
    page.run("document.querySelector('#steps [data-policy=\"\"]').click()")
    page.wait("document.getElementById('step-said').textContent === 'no traffic is driven'")
    assert launcher.stop() == 0


def test_the_page_follows_a_cluster_that_grows_and_shrinks(up: Callable[..., Up], page: Page, tmp_path: Path) -> None:
    launcher = up("--replicas", "4", "--slots", "2", "--json")
    launcher.event("ready")
    page.open(ctl(launcher, "dashboard").strip())
    followed(page, 4)
    page.run("document.querySelector('[aria-label=\"Restart r1\"]').focus()")
    card = """document.querySelector('[aria-label="Replica r2"]')"""
    page.run(f"{card}.dataset.seen = 'yes'")
    ctl(launcher, "scale", "6")
    followed(page, 6)
    assert page.run(f"{card}.dataset.seen") == "yes", "who stays keeps the card"
    assert page.run("document.activeElement.getAttribute('aria-label')") == "Restart r1", "and the focus"
    choices = "document.querySelector('#form-partition').elements"
    assert page.run(f"[{choices}.from.value, {choices}.to.value]") == ["r0", "*"]
    fill(page, "partition", **{"from": "r1", "to": "r5"})
    said(page, "r1 is cut off from r5")
    page.run("document.getElementById('heal').click()")
    said(page, "all replicas reach each other again")
    picture(page, tmp_path, "six")

    ctl(launcher, "scale", "3")
    followed(page, 3)
    assert page.run("[...document.querySelectorAll('.card [data-verb]')].every((one) => !/r[345]/.test(one.ariaLabel))")
    assert page.run(f"[{choices}.from.value, {choices}.to.value]") == ["r1", ""], (
        "nobody else is chosen for one that left"
    )
    page.run("document.querySelector('#form-partition button[type=submit]').click()")
    assert page.run("document.querySelector('#form-partition').checkValidity()") is False
    fill(page, "partition", **{"from": "r2", "to": "*"})
    said(page, "r2 is cut off from r0, r1")
    page.run("document.getElementById('heal').click()")
    picture(page, tmp_path, "three")
    assert not page.errors
    assert launcher.stop() == 0


def test_the_page_follows_a_launcher_that_comes_back(up: Callable[..., Up], page: Page) -> None:
    """At the same port and with other replicas; nothing of the former one is left."""
    first = up("--replicas", "3", "--json")
    url = first.event("ready")["dashboard"]
    page.open(ctl(first, "dashboard").strip())
    followed(page, 3)
    assert first.stop() == 0
    page.wait("document.getElementById('link').textContent === 'the launcher does not answer'")
    second = up("--replicas", "2", "--json", "--dashboard-port", url.rstrip("/").rpartition(":")[2])
    assert second.event("ready")["dashboard"] == url
    followed(page, 2)
    page.wait("document.getElementById('link').textContent === 'live'")
    press(page, "r1", "pause")
    said(page, "the control token is missing or wrong")
    assert page.run("document.getElementById('panel').disabled") is True, "the token was that of the former one"
    page.open(ctl(second, "dashboard").strip())
    press(page, "r1", "pause")
    page.wait(f"{state('r1')} === 'paused'")
    assert second.stop() == 0
