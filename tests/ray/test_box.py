"""What a replica in an actor has to say waits in a box until the driver asks for it."""

from __future__ import annotations

import threading

from cluster.engines.on_ray.actor import BOX_MAX, Box


def item(number: int, event: str = "said") -> dict[str, object]:
    return {"event": event, "number": number}


def test_an_answer_that_got_lost_can_be_had_again() -> None:
    box = Box()
    for number in range(3):
        box.put(item(number))
    assert box.take(0, 0) == (3, [item(0), item(1), item(2)])
    box.put(item(3))
    assert box.take(0, 0) == (4, [item(0), item(1), item(2), item(3)])
    assert box.take(3, 0) == (4, [item(3)])
    assert box.take(4, 0) == (4, [])


def test_who_asks_waits_for_the_next_item() -> None:
    box = Box()
    heard: list[tuple[int, list[dict[str, object]]]] = []
    asking = threading.Thread(target=lambda: heard.append(box.take(0, 30)))
    asking.start()
    box.put(item(0))
    asking.join(30)
    assert heard == [(1, [item(0)])]


def test_when_nobody_asks_statuses_and_lines_are_left_out_and_nothing_else() -> None:
    box = Box()
    for number in range(BOX_MAX):
        box.put(item(number, "status"))
    for event in ("log", "status", "over"):
        box.put(item(-1, event))
    after, items = box.take(0, 0)
    assert (after, len(items), items[-1]["event"]) == (BOX_MAX + 1, BOX_MAX + 1, "over")
