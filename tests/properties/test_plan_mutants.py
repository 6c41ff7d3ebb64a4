"""The checker is worth what it catches: for each of its rules a plan that breaks this rule and is refused in its words.

Every mutant starts from a plan that was proved right. A mutant that cannot be applied (the plan has no place for it)
fails the test, so that none of them passes by doing nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from foresee.arrays import Int32
from foresee.errors import PlanViolation
from foresee.plan import Lookahead, make_planner, plan
from foresee.plan.baselines.belady import Belady
from foresee.plan.check import check
from foresee.plan.count import count
from foresee.plan.record import NOT_KNOWN, UNKNOWN_VERSION, Accesses, Counters, Evict, Fetch, Header, Record
from foresee.testing.traces import header_for, largest_batch, skewed_trace

Records = list[Record]
Mutation = Callable[[Records], Records]

NUM_ROWS = 60


@pytest.fixture(scope="module")
def trace() -> list[Accesses]:
    return skewed_trace(seed=4, num_rows=NUM_ROWS, num_steps=24, num_samples=4, num_lookups=3)


@pytest.fixture(scope="module")
def header(trace: list[Accesses]) -> Header:
    return header_for("lookahead", trace, capacity_rows=largest_batch(trace) + 4, num_rows=NUM_ROWS)


@pytest.fixture(scope="module")
def records(trace: list[Accesses], header: Header) -> Records:
    return list(plan(make_planner(header, lambda steps: trace[:steps]), trace))


def changed(records: Records, step: int, **fields: Any) -> Records:
    return [replace(record, **fields) if record.step == step else record for record in records]


def first(records: Records, suitable: Callable[[Record], bool]) -> Record:
    found = next((record for record in records if suitable(record)), None)
    assert found is not None, "this plan has no place for the mutation: choose another trace"
    return found


def dropped(part: Any, position: int) -> Any:
    """A fetch or an eviction list without one of its lines."""
    names = part.__dataclass_fields__
    return type(part)(**{name: np.delete(getattr(part, name), position) for name in names})


def joined(part: Evict, position: int, other: Evict) -> Evict:
    """An eviction list with one line of another at its end."""
    line = slice(position, position + 1)
    return Evict(
        np.append(part.slot, other.slot[line]), np.append(part.row, other.row[line]),
        np.append(part.version, other.version[line]), np.append(part.next_use, other.next_use[line]),
    )  # fmt: skip


def edited(part: Any, name: str, position: int, value: int) -> Any:
    array = getattr(part, name).copy()
    array[position] = value
    return replace(part, **{name: array})


def comes_back(records: Records) -> Iterator[tuple[Record, int]]:
    """(record, position in its fetch) of rows that were in the cache before and left it."""
    gone: set[int] = set()
    for record in records:
        for position, row in enumerate(record.fetch.row.tolist()):
            if row in gone:
                yield record, position
        gone |= set(record.evict.row.tolist())


def sample_left_out(records: Records) -> Records:
    record = records[3]
    return changed(records, 3, samples=record.samples[:-1])


def sample_trained_twice(records: Records) -> Records:
    record = records[3]
    return changed(records, 3, samples=np.append(record.samples, record.samples[:1]))


def guard_too_early(records: Records) -> Records:
    """As when the start-up fill overshoots the window: the fetch comes before its row's write-back."""
    record, position = next(comes_back(records))
    written_at = max(r.step for r in records[: record.step] if record.fetch.row[position] in r.evict.row)
    assert written_at <= record.not_before
    return changed(records, record.step, not_before=written_at - 1)


def guard_too_late(records: Records) -> Records:
    return changed(records, 5, not_before=5)


def fetch_forgotten(records: Records) -> Records:
    """The cache fill that does nothing: the slot is read, but nobody put the row there."""
    record = first(records, lambda record: len(record.fetch) > 0)
    return changed(records, record.step, fetch=dropped(record.fetch, 0))


def fetch_of_another_row(records: Records) -> Records:
    record = first(records, lambda record: len(record.fetch) > 0)
    return changed(records, record.step, fetch=edited(record.fetch, "row", 0, NUM_ROWS + 7))


def fetch_into_a_used_slot(records: Records) -> Records:
    """Two rows in one slot: the free list gave it out twice."""
    record = first(records, lambda record: len(record.fetch) > 1)
    return changed(records, record.step, fetch=edited(record.fetch, "slot", 1, int(record.fetch.slot[0])))


def fetch_beyond_the_cache(records: Records) -> Records:
    """Overflow: more rows than slots, and the list of free slots runs out."""
    record = first(records, lambda record: len(record.fetch) > 0)
    return changed(records, record.step, fetch=edited(record.fetch, "slot", 0, 10_000))


def fetch_list_shortened(records: Records) -> Records:
    """Overflow as `empty_location[a:b]` has it: silently fewer rows."""
    record = first(records, lambda record: len(record.fetch) > 2)
    part = record.fetch
    return changed(records, record.step, fetch=Fetch(part.row[:-2], part.slot[:-2], part.version[:-2]))


def promise_of_a_wrong_version(records: Records) -> Records:
    record, position = next(comes_back(records))
    wrong = int(record.fetch.version[position]) - 1
    return changed(records, record.step, fetch=edited(record.fetch, "version", position, wrong))


def read_of_a_free_slot(records: Records) -> Records:
    record = records[3]
    used = set(record.unique.tolist())
    wrong = edited(record, "unique", 0, next(slot for slot in range(5_000, 6_000) if slot not in used))
    return changed(records, 3, unique=wrong.unique)


def two_lookups_exchanged(records: Records) -> Records:
    record = first(records, lambda record: record.inverse[0] != record.inverse[1])
    inverse = record.inverse.copy()
    inverse[:2] = inverse[1::-1]
    return changed(records, record.step, inverse=inverse)


def lookup_left_out(records: Records) -> Records:
    return changed(records, 3, inverse=records[3].inverse[:-1])


def slot_twice_in_unique(records: Records) -> Records:
    record = records[3]
    return changed(records, 3, unique=np.append(record.unique, record.unique[:1]))


def gradient_dropped(records: Records) -> Records:
    """The rows that one trainer alone touches lose their update."""
    return changed(records, 3, apply=records[3].apply[1:])


def gradient_applied_twice(records: Records) -> Records:
    return changed(records, 3, apply=np.append(records[3].apply, records[3].apply[:1]))


def row_applied_that_no_sample_touches(records: Records) -> Records:
    """It rests in the cache, is listed as touched, and its version grows without an update."""
    for before, record in pairwise(records):
        resting = np.setdiff1d(before.unique, np.concatenate([before.evict.slot, record.unique, record.evict.slot]))
        if len(resting):
            unique, apply = np.append(record.unique, resting[:1]), np.append(record.apply, resting[:1])
            return changed(records, record.step, unique=unique, apply=apply)
    raise AssertionError("this plan has no place for the mutation: choose another trace")


def digest_of_other_data(records: Records) -> Records:
    return changed(records, 3, digest=records[3].digest ^ 1)


def inverse_counted_from_the_end(records: Records) -> Records:
    """NumPy finds the same slot, a kernel reads what lies before the array."""
    record = records[3]
    return changed(records, 3, inverse=record.inverse - np.int32(len(record.unique)))


def fetch_beyond_the_tables(records: Records) -> Records:
    """Nobody reads the row, and the slot is given back."""
    record, slot = with_a_free_slot(records)
    beyond = fetched_too(record.fetch, NUM_ROWS, slot)
    return changed(records, record.step, fetch=beyond, drop=np.array([slot], np.int32))


def row_fetched_twice_and_dropped(records: Records) -> Records:
    record, slot = with_a_free_slot(records)
    twice = fetched_too(record.fetch, int(record.fetch.row[0]), slot)
    return changed(records, record.step, fetch=twice, drop=np.array([slot], np.int32))


def with_a_free_slot(records: Records) -> tuple[Record, int]:
    """A record that fetches, and a slot that no step up to it has used."""
    record = first(records, lambda record: len(record.fetch) > 0)
    used = {slot for earlier in records[: record.step + 1] for slot in earlier.unique.tolist()}
    return record, next(slot for slot in range(1_000) if slot not in used)


def fetched_too(fetch: Fetch, row: int, slot: int) -> Fetch:
    slots, versions = np.append(fetch.slot, np.int32(slot)), np.append(fetch.version, np.int32(0))
    return Fetch(np.append(fetch.row, row), slots, versions)


def eviction_forgotten(records: Records) -> Records:
    """A write-back that is lost while its slot is given away."""
    record = first(records, lambda record: len(record.evict) > 0)
    return changed(records, record.step, evict=dropped(record.evict, 0))


def last_eviction_forgotten(records: Records) -> Records:
    """Nobody reads the row again: only an audit at the end can see it."""
    return changed(records, records[-1].step, evict=dropped(records[-1].evict, 0))


def eviction_of_another_slot(records: Records) -> Records:
    record = first(records, lambda record: len(record.evict) > 0)
    held = set(record.unique.tolist()) - set(record.evict.slot.tolist())
    return changed(records, record.step, evict=edited(record.evict, "slot", 0, min(held)))


def eviction_twice(records: Records) -> Records:
    record = first(records, lambda record: len(record.evict) > 0)
    part = record.evict
    return changed(records, record.step, evict=joined(part, 0, part))


def eviction_in_an_old_version(records: Records) -> Records:
    record = first(records, lambda record: len(record.evict) > 0 and record.step > 3)
    return changed(records, record.step, evict=edited(record.evict, "version", 0, int(record.evict.version[0]) - 1))


def eviction_of_an_updated_row_in_no_version(records: Records) -> Records:
    """Only of a row that is as the store has it may a plan leave the version open."""
    record = first(records, lambda record: len(record.evict) > 0 and record.step > 3)
    return changed(records, record.step, evict=edited(record.evict, "version", 0, UNKNOWN_VERSION))


def eviction_too_early(records: Records) -> Records:
    """The row leaves one step before its last use."""
    for record in records[1:]:
        before = records[record.step - 1]
        for position, slot in enumerate(record.evict.slot.tolist()):
            if slot in record.unique and slot in before.unique:
                early = joined(before.evict, position, edited(record.evict, "version", position, before.step + 1))
                without = dropped(record.evict, position)
                return changed(changed(records, before.step, evict=early), record.step, evict=without)
    raise AssertionError("this plan has no place for the mutation: choose another trace")


def with_known_use(records: Records) -> Record:
    """A record whose first evicted row comes back, and says when."""
    return first(records, lambda record: len(record.evict) > 0 and record.evict.next_use[0] != NOT_KNOWN)


def next_use_too_late(records: Records) -> Records:
    record = with_known_use(records)
    return changed(records, record.step, evict=edited(record.evict, "next_use", 0, int(record.evict.next_use[0]) + 1))


def next_use_of_a_row_that_never_comes_back(records: Records) -> Records:
    record = records[-2]
    return changed(records, 22, evict=edited(record.evict, "next_use", 0, 23))


def next_use_left_out(records: Records) -> Records:
    record = with_known_use(records)
    assert len(record.evict) > 1
    return changed(records, record.step, evict=replace(record.evict, next_use=record.evict.next_use[:-1]))


def out_of_order(records: Records) -> Records:
    return [*records[:3], records[4], records[3], *records[5:]]


def record_missing(records: Records) -> Records:
    return records[:-1]


def record_too_many(records: Records) -> Records:
    return [*records, records[-1]]


MUTANTS: list[tuple[Mutation, str]] = [
    (sample_left_out, "the samples are not each trained exactly once"),
    (sample_trained_twice, "the samples are not each trained exactly once"),
    (guard_too_early, r"written back after step \d+, read after -?\d+"),
    (guard_too_late, "step 5: its fetch is issued after step 5: too late, or too far ahead"),
    (fetch_forgotten, "is read but holds nothing"),
    (fetch_of_another_row, "the lookups do not find their own rows"),
    (fetch_into_a_used_slot, r"into a slot that holds row \d+"),
    (fetch_beyond_the_cache, r"slot 10000: the cache has \d+ slots"),
    (fetch_list_shortened, "is read but holds nothing"),
    (promise_of_a_wrong_version, r"the plan promises version \d+, training needs \d+"),
    (read_of_a_free_slot, "is read but holds nothing"),
    (two_lookups_exchanged, "the lookups do not find their own rows"),
    (lookup_left_out, "the lookups do not find their own rows"),
    (slot_twice_in_unique, "a slot stands twice in `unique`"),
    (gradient_dropped, "the rows applied are not the rows touched, each once"),
    (gradient_applied_twice, "the rows applied are not the rows touched, each once"),
    (row_applied_that_no_sample_touches, r"worker 0 has it in `unique`, but no sample touches it"),
    (digest_of_other_data, r"step 3: the digest of worker 0 is -?\d+, its lookups have another"),
    (inverse_counted_from_the_end, r"`inverse` has positions outside the \d+ of `unique`"),
    (fetch_beyond_the_tables, "row 60: fetched, but the tables have rows 0 to 59"),
    (row_fetched_twice_and_dropped, r"worker 0 holds this row already, in slot \d+"),
    (eviction_forgotten, r"into a slot that holds row \d+"),
    (last_eviction_forgotten, r"row \d+: version \d+ never reached the store"),
    (eviction_of_another_slot, r"evicted, but the slot holds \d+"),
    (eviction_twice, "evicted, but the slot holds None"),
    (eviction_in_an_old_version, r"evicted as version \d+, the slot has \d+"),
    (eviction_of_an_updated_row_in_no_version, r"evicted as version -1, the slot has \d+"),
    (eviction_too_early, "is read but holds nothing"),
    (next_use_too_late, r"evicted as used next in step \d+, but step \d+ uses it"),
    (next_use_of_a_row_that_never_comes_back, r"step 22, row \d+: evicted as used next in step 23, which does not"),
    (next_use_left_out, r"\d+ rows are evicted with \d+ next uses"),
    (out_of_order, "record of step 4.* stands where step 3 is due"),
    (record_missing, "step 23 has no record"),
    (record_too_many, "the plan has more records than the 24 steps of the trace"),
]


def test_the_plan_itself_is_right(header: Header, trace: list[Accesses], records: Records) -> None:
    check(header, trace, records, count(records)).require()


@pytest.mark.parametrize(("mutate", "sentence"), MUTANTS, ids=[mutate.__name__ for mutate, _ in MUTANTS])
def test_the_checker_catches(
    mutate: Mutation, sentence: str, header: Header, trace: list[Accesses], records: Records
) -> None:
    verdict = check(header, trace, mutate(records), None)
    assert any(re.search(sentence, violation) for violation in verdict.violations), verdict.violations
    with pytest.raises(PlanViolation, match=r"the plan breaks \d+ rules, first: "):
        verdict.require()


def test_a_fetch_too_far_ahead_is_caught(trace: list[Accesses], records: Records, header: Header) -> None:
    """`fetch_ahead_steps` bounds staging memory: a plan made for more is refused."""
    verdict = check(replace(header, fetch_ahead_steps=1), trace, records, None)
    assert any("too late, or too far ahead" in violation for violation in verdict.violations)


def test_a_lost_write_back_makes_stale_reads_that_are_counted(
    header: Header, trace: list[Accesses], records: Records
) -> None:
    """The slot is freed, but the store keeps the old version: every later read of the row is one too old."""
    back, position = next(comes_back(records))
    row = back.fetch.row[position]
    written = max((r for r in records[: back.step] if row in r.evict.row), key=lambda r: r.step)
    place = written.evict.row.tolist().index(row)
    lost = changed(records, written.step, evict=edited(written.evict, "row", place, NUM_ROWS + 9))
    verdict = check(header, trace, lost, None)
    assert verdict.stale_reads > 0


COUNTED = ("num_fetched", "num_evicted", "num_lookups", "num_unique", "num_steps", "peak_slots")


@pytest.mark.parametrize("field", COUNTED)
def test_wrong_counters_are_caught(field: str, header: Header, trace: list[Accesses], records: Records) -> None:
    counters: Counters = count(records)
    wrong = replace(counters, **{field: getattr(counters, field) + 1})
    verdict = check(header, trace, records, wrong)
    assert any("the plan promises" in violation for violation in verdict.violations)
    assert verdict.num_violations == 1


class NearestFirst(Lookahead):
    """Evicts the row that is needed soonest: right, and as wasteful as can be."""

    def _victims(self, step: int, num_needed: int) -> tuple[Int32, Int32]:
        chosen: list[int] = []
        uses: list[int] = []
        nowhere = len(self._lists) - 1
        for bucket in range(step + 1, self._read):
            place = bucket % len(self._heads)
            while len(chosen) < num_needed and self._heads[place] != -1:
                chosen.append(int(self._heads[place]))
                uses.append(bucket)
                self._heads[place] = self._lists[chosen[-1], 0]
        while len(chosen) < num_needed and self._lists[nowhere, 0] != nowhere:
            slot = int(self._lists[nowhere, 0])
            self._lists[nowhere, 0] = self._lists[slot, 0]
            self._lists[self._lists[slot, 0], 1] = nowhere
            chosen.append(slot)
        uses += [NOT_KNOWN] * (len(chosen) - len(uses))
        return np.array(chosen, np.int32), np.array(uses, np.int32)


def test_evicting_the_nearest_is_right_and_seen_by_the_counts_alone() -> None:
    """Why golden counts exist: no checker of correctness can see waste."""
    trace = skewed_trace(seed=7, num_rows=2_000, num_steps=40, num_samples=16, num_lookups=4)
    header = header_for("lookahead", trace, capacity_rows=150, num_rows=2_000)
    good = list(plan(Lookahead(header, remember_versions=True), trace))
    wasteful = list(plan(NearestFirst(header, remember_versions=True), trace))
    best = list(plan(Belady(header), trace))
    check(header, trace, wasteful, None).require()
    assert count(good).num_fetched == count(best).num_fetched
    assert count(wasteful).num_fetched > 1.2 * count(good).num_fetched
