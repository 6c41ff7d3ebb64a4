"""The page of evidence is made from kept outputs alone: every section has markers, and figures land between them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import evidence
from drawn import accuracy, breakdown, larger, peers, planner, policies, scaling, sensitivity

CURVE = [{"num_samples": 100, "auc": 0.6, "log_loss": 0.5}, {"num_samples": 200, "auc": 0.7, "log_loss": 0.4}]
PARTS = {"rows": 0.05, "forward": 0.02, "backward": 0.03, "update": 0.01}
OUTPUTS: dict[str, dict[str, Any]] = {
    "accuracy": {
        "accuracy": {
            "films": {
                "curves": {"exact": CURVE, "het 10": CURVE, "fae": CURVE}, "num_seeds": 3, "fae_hot_samples": 0.25,
                "auc_exact": 0.7123, "log_loss_exact": 0.4,
                **{
                    f"{what}_{name}{end}": value
                    for name in ("het_10", "fae")
                    for what in ("auc", "log_loss")
                    for end, value in (("", 0.7011), ("_minus_exact", -0.0112), ("_minus_exact_error", 0.0003))
                },
                **{f"stale_per_lookup_{name}": 0.81 for name in ("het_10", "fae")},
                **{f"missing_updates_per_stale_read_{name}": 7.5 for name in ("het_10", "fae")},
            }
        }
    },
    "breakdown": {
        "breakdown": {
            "none": PARTS, "ours": PARTS, "ideal": PARTS, "none_over_ours": 4.21, "ours_over_ideal": 1.07, "turns": 4,
            "cache_rows": 11_295, "hit_rate": 0.5, "samples_per_second_ideal": 20_000.0,
            **{f"rows_share_{side}": 0.45 for side in ("none", "ours", "ideal")},
        }
    },
    "sensitivity": {
        "sensitivity": {
            "lookahead_steps": [0, 5], "eager_fetched": [1_100.0, 420.0], "eager_peak_slots": [1_100, 3_000],
            "lazy_fetched": [500.0, 333.0], "lazy_cache_rows": 2_000, "bound_fetched": 321.0, "unique_rows": 1_100.0,
            "cache_rows": [1_200, 2_400], "touched_rows": 24_000, "lookahead_fetched": [600.0, 300.0],
            "lru_fetched": [900.0, 700.0], "belady_fetched": [600.0, 299.0], "timed_lookahead_steps": [0, 4],
            "lookahead_step_ms": [50.0, 30.0], "lookahead_rows_ms": [20.0, 3.0], "timed_cache_rows": [1_200, 2_400],
            "cache_step_ms": [40.0, 30.0], "cache_rows_ms": [10.0, 2.0],
        }
    },
    "planner": {
        "workers_8": {"examples_per_second": 123_456, "placement_share": 0.7},
        "breakdown": {"samples_per_second_ideal": 20_000.0},
    },
    "policies": {
        "policies": {
            "films": {
                "none": {"rows_per_step": 900.0, "critical_rows_per_step": 600.0, "stale_reads": 0.0},
                "het 10": {"rows_per_step": 400.0, "critical_rows_per_step": 100.0, "stale_reads": 0.5},
                "lookahead": {"rows_per_step": 300.0, "critical_rows_per_step": 123.0, "stale_reads": 0.0},
            }
        }
    },
    "scaling": {
        "simulator": {"predicted_over_measured_min": 0.91},
        "ours": {"lines": [{"trainers": "8", "step_ms": "12.3", "bottleneck": "compute"}]},
    },
    "peers": {"peers": {"ours_over_pytorch": 1.31, "auc_difference": 0.0002}},
    "larger": {"larger": {"tables_over_limit": 11.2, "tables_bytes": 13_400_000_000, "limit_by": "cgroup"}},
}  # fmt: skip
EXPECTED = {
    "accuracy": "-0.0112 ± 0.0003", "breakdown": "**4.21**", "sensitivity": "333", "planner": "123,456",
    "policies": "123 / 300", "scaling": "12.3", "peers": "1.31", "larger": "11.2",
}  # fmt: skip
MODULES = {
    "accuracy": accuracy, "breakdown": breakdown, "sensitivity": sensitivity, "planner": planner, "policies": policies,
    "scaling": scaling, "peers": peers, "larger": larger,
}  # fmt: skip


@pytest.mark.parametrize("name", evidence.SECTIONS)
def test_every_section_draws_and_writes_what_was_kept(name: str) -> None:
    section = evidence.SECTIONS[name]
    assert section is MODULES[name].SECTION
    assert EXPECTED[name] in section.words(OUTPUTS[name])
    figure = section.draw(OUTPUTS[name])
    assert figure is not None
    assert len(figure.data) > 0


def test_peers_have_a_line_for_each_side_of_each_case() -> None:
    ours = {"ours_samples_per_second_deepfm": 80_000, "ours_peak_mb_deepfm": 700.5, "ours_auc_deepfm": 0.74}
    theirs = {"fuxictr_samples_per_second_deepfm": 20_000, "fuxictr_peak_mb_deepfm": 1200.0, "fuxictr_auc_deepfm": 0.73}
    written = peers.words({"peers": {**theirs, **ours, "ours_over_fuxictr_deepfm": 4.0, "auc_difference": 0.0001}})
    lines = "| deepfm | Foresee | 80,000 |  | 700.5 | 0.74 |\n| deepfm | FuxiCTR | 20,000 | 4.0 | 1,200.0 | 0.73 |"
    assert lines in written
    assert "| `auc_difference` | 0.0001 |" in written
    assert "`ours_over_fuxictr_deepfm`" not in written


@pytest.mark.parametrize("name", evidence.SECTIONS)
def test_the_page_has_markers_for_every_section(name: str) -> None:
    page = evidence.PAGE.read_text("utf-8")
    changed = evidence.with_figures(page, name, "\nNEW FIGURES\n")
    assert f"<!-- figures: {name} -->\n\nNEW FIGURES\n<!-- end: {name} -->" in changed
    assert evidence.with_figures(changed, name, "") == evidence.with_figures(page, name, "")


def test_the_page_says_nothing_else_in_figures() -> None:
    """Outside of its markers, and of the table of all benchmarks at its end, the page holds no measured number."""
    page, _, table = evidence.PAGE.read_text("utf-8").partition("## All figures\n")
    assert table.count("benchmarks/") > 10
    prose = re.sub(r"<!-- figures: (\w+) -->.*?<!-- end: \1 -->", "", page, flags=re.DOTALL)
    assert not re.search(r"\d+\.\d+|\d %|\d×", prose)


def test_commands_are_there_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "KEPT", tmp_path / "kept")
    assert evidence.measure("peers", only_missing=False) == [
        "peers: benchmarks/peers.py is not there; its part of the page stays as it is"
    ]
    (tmp_path / "benchmarks").mkdir()
    script = tmp_path / "benchmarks" / "peers.py"
    script.write_text("raise SystemExit(3)")
    assert "ended with 3" in evidence.measure("peers", only_missing=False)[0]
    script.write_text("print('no figures')")
    assert "did not print a JSON object last" in evidence.measure("peers", only_missing=False)[0]
    script.write_text("print('a line'); print('{\"ours_over_pytorch\": 1.5}')")
    assert evidence.measure("peers", only_missing=False) == []
    kept = json.loads((tmp_path / "kept" / "peers.json").read_text())
    assert kept["peers"]["output"] == {"ours_over_pytorch": 1.5}
    assert kept["peers"]["command"] == "python benchmarks/peers.py"
    script.unlink()
    assert evidence.measure("peers", only_missing=True) == [], "what is kept is not measured again"


def test_the_minutes_add_up() -> None:
    assert sum(section.minutes for section in evidence.SECTIONS.values()) <= 30, "the page promises half an hour"


def test_what_is_kept_names_no_place_on_the_machine_that_measured() -> None:
    kept = list(evidence.KEPT.glob("*.json"))
    assert kept
    for file in kept:
        text = file.read_text("utf-8")
        assert str(evidence.ROOT) not in text
        assert "/tmp/" not in text
