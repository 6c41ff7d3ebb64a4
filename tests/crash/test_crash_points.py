"""The power goes at every operation of a commit of two folders and a checkpoint; what is left is exactly one commit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import power_cuts
import pytest

from foresee.testing.fake_disk import CrashDisk, mix_sectors


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_crash_at_every_operation_leaves_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_cuts, "NUM_STEPS", 2)
    monkeypatch.setattr(power_cuts, "RECOVERY_EVERY", 60)
    tally = power_cuts.Tally(power_cuts=1)
    power_cuts.try_scenario(1, tally)
    assert tally.violations == []
    assert tally.trials > 200
    for point in (
        "sync log.bin",
        "replace chunks-1.bin",
        "replace layout.json",
        "sync rows.npy",
        "replace undo.bin",
        "rows half written",
        "sync model.safetensors",
        "replace manifest.json",
        "decided",
        "run folder: replace config.yaml",
    ):
        assert tally.points[point], f"the power never went at {point}; there are {sorted(tally.points)}"
    assert any(point.startswith("recovery: ") for point in tally.points)


def test_what_was_not_synced_may_be_lost(tmp_path: Path) -> None:
    crash_disk = CrashDisk(tmp_path)
    crash_disk.publish(tmp_path / "kept", b"old")
    (tmp_path / "kept").write_bytes(b"new")
    (tmp_path / "made").write_bytes(b"made")
    contents = {tuple(sorted(_image(crash_disk, seed).items())) for seed in range(60)}
    assert any(("kept", b"old") in content for content in contents)
    assert any(("kept", b"new") in content for content in contents)
    assert any("made" not in dict(content) for content in contents)
    assert any(("made", b"made") in content for content in contents)
    assert crash_disk.image(None).files == {"kept": b"new", "made": b"made"}
    crash_disk.close()


def test_what_was_synced_is_kept(tmp_path: Path) -> None:
    crash_disk = CrashDisk(tmp_path)
    for content in (b"one" * 400, b"two" * 500):
        crash_disk.publish(tmp_path / "file", content)
        assert all(_image(crash_disk, seed) == {"file": content} for seed in range(20))
    crash_disk.close()


def test_a_name_is_as_before_or_as_after(tmp_path: Path) -> None:
    """A rename whose folder was not synced: the old file or the new one, never a mixture."""
    found: set[bytes | None] = set()

    def look(point: str) -> None:
        if point.startswith("sync test_a_name"):
            found.update(_image(crash_disk, seed).get("file") for seed in range(40))

    crash_disk = CrashDisk(tmp_path, look)
    crash_disk.publish(tmp_path / "file", b"one" * 400)
    found.clear()
    crash_disk.publish(tmp_path / "file", b"two" * 400)
    assert found == {b"one" * 400, b"two" * 400}
    crash_disk.close()


def test_sectors_are_mixed_and_torn() -> None:
    present, durable = b"n" * 2048, b"o" * 2048
    mixed = [mix_sectors(present, durable, np.random.default_rng(seed)) for seed in range(50)]
    assert all(set(content) <= set(b"no") and len(content) == 2048 for content in mixed)
    torn = [content for content in mixed if any(len(set(content[k : k + 512])) > 1 for k in range(0, 2048, 512))]
    assert torn, "a sector may be half written"
    assert len(set(mixed)) > 20


def _image(crash_disk: CrashDisk, seed: int) -> dict[str, bytes]:
    return crash_disk.image(np.random.default_rng(seed)).files
