"""What parts write down on nodes of a Ray cluster is the same where the command was typed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foresee.launch import ray_host
from foresee.launch.ray_host import Followed


def test_a_file_of_a_node_is_the_same_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Added to, replaced by a shorter and by a longer one, in pieces; nothing is told twice."""
    monkeypatch.setattr(ray_host, "OUTPUT_BYTES_MAX", 10)
    there, here = tmp_path / "there.jsonl", tmp_path / "folder" / "here.jsonl"
    followed = Followed(str(there))

    def told(*, all_of_it: bool = False) -> bool:
        added = followed.added(all_of_it=all_of_it)
        if added is not None:
            ray_host.Added(str(here), added.content, added.anew).carry_out()
        return added is not None

    assert not told()
    there.write_bytes(b"")
    assert told()
    assert here.read_bytes() == b""
    with open(there, "ab") as file:
        for lines in (b"one\n", b"two\nthree\n"):
            file.write(lines)
            file.flush()
            assert told()
    assert (here.read_bytes(), told()) == (b"one\ntwo\nthree\n", False)
    for content in (b"one\n", b"one\nand a line that is longer\n"):
        (tmp_path / "draft").write_bytes(content)
        os.replace(tmp_path / "draft", there)
        while told():
            pass
        assert here.read_bytes() == content
    with open(there, "ab") as file:
        file.write(b"the last lines come at once\n" * 3)
    assert told(all_of_it=True)
    assert (here.read_bytes(), told()) == (there.read_bytes(), False)
