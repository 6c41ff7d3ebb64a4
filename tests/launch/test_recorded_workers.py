"""Several processes, each recording itself: the records agree with each other, also of a run that was stopped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from warm_commands import Commands

from foresee.data import ClickLog
from foresee.tools.report.run_breakdown import links_of
from foresee.tools.report.run_page import run_sections
from foresee.tools.report.run_records import read_run


def test_every_worker_records_every_step_once_and_they_agree(
    commands: Commands, run_file: Path, small_log: ClickLog
) -> None:
    run = run_file.parent / "run"
    arguments = ["train", str(run_file), "--set", "report.timeline_steps=1000"]
    for more in (["--stop-after", 10], ["--resume"]):
        code, text = commands.run(*arguments, *more)
        assert code == 0, text
    records = read_run(run)
    assert [worker.worker for worker in records.workers] == [0, 1]
    assert records.finished
    for worker in records.workers:
        assert sum(point.steps for point in worker.points) == 25
        steps = Counter(span.step for span in worker.spans if span.what == "forward")
        assert steps == Counter(range(25))
        assert worker.start["num_servers"] == 2
    lookups = sum(point.lookups for worker in records.workers for point in worker.points)
    assert lookups == sum(len(batch.rows) for batch in small_log.batches(batch_size=16).batches())
    first, second = records.workers
    sent = sum(point.peer_bytes[1][0] for point in first.points)
    assert sent == sum(point.peer_bytes[0][1] for point in second.points) > 0
    assert len(links_of(records.workers)) == 6
    headings = {section.heading: section.content for section in run_sections(records)}
    assert headings["What happens at the same time"] is not None
