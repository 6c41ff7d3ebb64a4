"""Workers, servers and a planner over tables of several widths: the bytes of unplanned training."""

from __future__ import annotations

from pathlib import Path

from run_results import dense_half, rows_in_folders
from warm_commands import Commands

NUM_STEPS = 25


def test_several_widths_end_with_the_bytes_of_unplanned_training(commands: Commands, run_file: Path) -> None:
    """Rows move between two workers in all widths; the run stops, goes on with other servers, and is scored."""
    text = run_file.read_text()
    wide = "model: {name: dcn_v2, dim: {user: 6, item: 3, default: 2}, options: {num_cross: 1, deep: [8]}}"
    run_file.write_text(text.replace("model: {name: dlrm, dim: 4, options: {bottom: [8], top: [8]}}", wide))
    unplanned, run = run_file.parent / "unplanned", run_file.parent / "run"
    options = ["--set", "cache.planner=none", "--set", f"run={unplanned}", "--set", "cache.rows=150"]
    for words in (options, ["--stop-after", 11], ["--resume", "--servers", 3]):
        code, said = commands.run("train", run_file, *words)
        assert code == 0, said
    assert rows_in_folders(run) == rows_in_folders(unplanned)
    assert dense_half(run, NUM_STEPS) == dense_half(unplanned, NUM_STEPS)
    assert sorted(it.name for it in (run / "tables" / "shard-2").iterdir() if it.is_dir()) == [
        "width-2", "width-3", "width-6",
    ]  # fmt: skip
    for command in (("evaluate", run), ("check", run), ("report", run), ("export", run, "--out", run.parent / "out")):
        code, said = commands.run(*command)
        assert code == 0, said
