"""Writes the file tree into docs/files.md: every module and folder with its first sentence.

Run it after adding or renaming a module or a folder; a test fails while the page is behind.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "foresee"
BEGIN, END = "<!-- tree -->", "<!-- /tree -->"
PAGE = ROOT / "docs" / "files.md"


def first_sentence(path: Path) -> str:
    """What a module says of itself, up to the first full stop, colon-introduced list or line end."""
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    line = " ".join(said.split("\n\n")[0].split())
    return line.split(". ")[0].rstrip(".:")


def tree(folder: Path = SOURCE, depth: int = 0) -> list[str]:
    """Lines of the tree below a folder: its own sentence first, then its modules, then its folders."""
    indent = "    " * depth
    lines = [f"{indent}{folder.name}/".ljust(34) + first_sentence(folder / "__init__.py")]
    indent += "    "
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            lines.append(f"{indent}{path.name}".ljust(34) + first_sentence(path))
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").exists():
            lines += tree(path, depth + 1)
    return lines


def with_tree(page: str) -> str:
    """The page with its tree made anew."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n```\n" + "\n".join(tree()) + f"\n```\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_tree(PAGE.read_text()))
