"""Every command of README and of the first pages works as it is printed; and the walk sees those that do not.

`make newcomer` walks all pages.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
import walk


@pytest.mark.slow
@pytest.mark.timeout(walk.SECONDS_MAX + 60)
@pytest.mark.parametrize("name", walk.IN_SUITE)
def test_a_page_works_as_printed(name: str, tmp_path: Path) -> None:
    assert walk.walk(name, prefix=Path(sys.prefix), folder=tmp_path) == []


def test_the_pages_are_found() -> None:
    assert {*walk.IN_SUITE, "docs/cluster.md", "docs/servers.md"} <= set(walk.pages())


PAGE = """
Some words, and `foresee not-a-block`.

    foresee prepare csv a.csv
    foresee demo

<!-- run first:
echo hidden
-->

```sh
pip install .
foresee demo --samples 5
```

<!-- not run: needs a cluster -->

    foresee cluster plan none

words

    $ python a.py
    output
    $ python b.py

- a list
    foresee in-a-list

```python
foresee = 1
```

<!-- run -->
```python
print(1)
```

    rows = foresee.lookahead()
"""


def test_what_is_a_command() -> None:
    assert [block.script for block in walk.blocks(PAGE)] == [
        "foresee prepare csv a.csv\nforesee demo --samples 20000\n",
        "echo hidden",
        ":\nforesee demo --samples 5",
        "python a.py\npython b.py",
        "python - <<'END_OF_SCRIPT'\nprint(1)\nEND_OF_SCRIPT",
    ]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("false", "page.md:2 ended with 1: false"),
        ("python -c 'import warnings; warnings.warn(str(1))'", "says more than a sentence on stderr"),
        ("cat none.csv", "No such file"),
    ],
)
def test_what_does_not_work_is_told(script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(f"words\n```sh\n{script}\n```\n```sh\necho after > after\n```\n")
    (tmp_path / "folder").mkdir()
    wrong = walk.walk("page.md", prefix=Path(sys.prefix), folder=tmp_path / "folder")
    assert any(words in sentence for sentence in wrong), wrong


def test_servers_and_variables_go_on_to_the_next_block_and_end_with_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(
        "```sh\nexport WORD=here\nsleep 1000 &\necho $! > pid\n```\n```sh\nkill -0 $(cat pid)\ntest $WORD = here\n```\n"
    )
    (tmp_path / "folder").mkdir()
    assert walk.walk("page.md", prefix=Path(sys.prefix), folder=tmp_path / "folder") == []
    process = (tmp_path / "folder" / "pid").read_text().strip()
    stat = Path(f"/proc/{process}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_sentences_of_the_troubleshooting_page_are_those_of_the_program() -> None:
    """Each piece of a sentence, cut where names and numbers stand, is said somewhere."""
    page = (walk.ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    tables = [part.split("\n\n")[0] for part in page.split("| sentence | what to do |")[1:]]
    sentences = [found for table in tables for found in re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)]
    assert len(sentences) > 30
    said = "\0".join(text for path in (walk.ROOT / "src").rglob("*.py") for text in _texts(ast.parse(path.read_text())))
    for sentence in sentences:
        for piece in re.split("…", sentence):
            assert piece in said, f"{sentence}: nothing says {piece!r}"


def _texts(tree: ast.AST) -> list[str]:
    """The texts of a module, with \0 where one has a value."""
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            texts.append("".join(str(it.value) if isinstance(it, ast.Constant) else "\0" for it in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    return texts
