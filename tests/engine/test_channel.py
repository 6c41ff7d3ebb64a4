"""Hand-overs between threads end in every case: items in order, errors after them, refusals at once, waits in time."""

from __future__ import annotations

import threading

import pytest

from foresee.engine.channel import Channel, Watermark
from foresee.errors import ConsistencyError

BLINK_SECONDS = 0.02


def channel(*items: int, capacity: int = 8, timeout_seconds: float = 60.0) -> Channel[int]:
    made: Channel[int] = Channel("test", capacity=capacity, timeout_seconds=timeout_seconds)
    for item in items:
        made.put(item)
    return made


def test_items_come_in_order_and_end() -> None:
    queue = channel(3, 1, 2)
    queue.close()
    assert list(queue) == [3, 1, 2]


def test_an_error_comes_after_the_items_before_it() -> None:
    queue, error = channel(1, 2), ValueError("the sender's own")
    queue.close(error)
    arrivals = iter(queue)
    assert [next(arrivals), next(arrivals)] == [1, 2]
    with pytest.raises(ValueError) as caught:
        next(arrivals)
    assert caught.value is error


def test_the_first_of_two_errors_counts() -> None:
    queue, first = channel(), ValueError("first")
    queue.close(first)
    queue.close(ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        list(queue)


def test_a_refusal_reaches_a_sender_that_waits_for_room() -> None:
    queue, error = channel(1, capacity=1), ValueError("not any more")
    seen: list[ValueError] = []
    waits = threading.Event()

    def send() -> None:
        waits.set()
        try:
            queue.put(2)
        except ValueError as caught:
            seen.append(caught)

    thread = threading.Thread(target=send)
    thread.start()
    waits.wait()
    queue.refuse(error)
    thread.join()
    assert seen == [error]


def test_a_refusal_drops_what_was_sent_and_holds_for_ever() -> None:
    queue = channel(1, 2)
    queue.refuse(ValueError("first"))
    queue.refuse(ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        queue.put(3)
    queue.close()
    assert list(queue) == []


def test_no_more_than_the_capacity_is_in_flight() -> None:
    """The sender counts what it could put before each item was taken: never more than one ahead of the capacity."""
    queue = channel(capacity=2)
    ahead: list[int] = []
    taken: list[int] = []

    def send() -> None:
        for item in range(50):
            queue.put(item)
            ahead.append(item - len(taken))
        queue.close()

    thread = threading.Thread(target=send)
    thread.start()
    for item in queue:
        taken.append(item)
    thread.join()
    assert taken == list(range(50))
    assert max(ahead) <= 2, "an item was put while two were waiting"


def test_the_next_item_is_taken_only_if_it_is_there_and_wanted() -> None:
    queue = channel(capacity=3)
    assert queue.take_if(lambda item: True) is None
    queue.put(1)
    assert queue.take_if(lambda item: item > 1) is None
    assert queue.take_if(lambda item: item == 1) == 1
    assert queue.take_if(lambda item: True) is None


def test_a_sender_rests_until_few_items_are_left() -> None:
    queue, left = channel(capacity=5), list[int]()
    for item in range(5):
        queue.put(item)

    def rest() -> None:
        queue.wait_until_few(2)
        left.append(5 - len(taken))

    taken: list[int] = []
    thread = threading.Thread(target=rest)
    thread.start()
    for _ in range(3):
        assert not left
        taken.append(queue.take_if(lambda item: True) or 0)
    thread.join()
    assert left == [2]
    queue.refuse(ValueError("gone"))
    with pytest.raises(ValueError, match="gone"):
        queue.wait_until_few(0)


def test_waits_end_with_a_sentence() -> None:
    with pytest.raises(ConsistencyError, match="waited 0 s for the next item of the test queue; look for a"):
        list(channel(timeout_seconds=BLINK_SECONDS))
    with pytest.raises(ConsistencyError, match="waited 0 s for room in the test queue"):
        channel(1, 2, capacity=1, timeout_seconds=BLINK_SECONDS)


def test_a_watermark_only_rises() -> None:
    mark = Watermark("steps", reached=3, timeout_seconds=BLINK_SECONDS)
    mark.raise_to(1)
    mark.wait_for(3)
    mark.raise_to(5)
    mark.wait_for(4)
    mark.wait_for(5)
    with pytest.raises(ConsistencyError, match="waited 0 s for steps 6, which is at 5"):
        mark.wait_for(6)


def test_a_failed_watermark_still_tells_what_was_reached() -> None:
    mark, error = Watermark("steps", reached=3), ValueError("the writer's own")
    mark.fail(error)
    mark.fail(ValueError("another"))
    mark.wait_for(3)
    with pytest.raises(ValueError) as caught:
        mark.wait_for(4)
    assert caught.value is error


def test_a_watermark_wakes_whoever_waits() -> None:
    mark = Watermark("steps", reached=0)
    passed: list[int] = []

    def wait_for(number: int) -> None:
        mark.wait_for(number)
        passed.append(number)

    threads = [threading.Thread(target=wait_for, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    mark.raise_to(1)
    threads[0].join()
    assert passed == [1]
    mark.raise_to(2)
    threads[1].join()
    assert passed == [1, 2]
