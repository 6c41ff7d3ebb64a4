"""Writes the file trees: the folders into README.md, every module into docs/files.md, each with its first sentence.

Run it after adding or renaming a module or a folder; a test fails while the pages are behind.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "foresee"
BEGIN, END = "<!-- tree -->", "<!-- /tree -->"
PAGES = {"README.md": False, "docs/files.md": True}
"""Whether a page shows modules, too."""


def first_sentence(path: Path) -> str:
    """What a module says of itself, up to the first full stop, colon-introduced list or line end."""
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    line = " ".join(said.split("\n\n")[0].split())
    return line.split(". ")[0].rstrip(".:")


def tree(folder: Path = SOURCE, depth: int = 0, *, modules: bool) -> list[str]:
    """Lines of the tree below a folder: its own sentence first, then its modules, then its folders."""
    indent = "    " * depth
    lines = [f"{indent}{folder.name}/".ljust(34) + first_sentence(folder / "__init__.py")]
    indent += "    "
    # The modules at the top are few, and a person meets them first.
    for path in sorted(folder.glob("*.py")) if modules or folder == SOURCE else ():
        if path.name != "__init__.py":
            lines.append(f"{indent}{path.name}".ljust(34) + first_sentence(path))
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").exists():
            lines += tree(path, depth + 1, modules=modules)
    return lines


def with_tree(page: str, *, modules: bool) -> str:
    """The page with its tree made anew."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n```\n" + "\n".join(tree(modules=modules)) + f"\n```\n{END}{after}"


if __name__ == "__main__":
    for name, modules in PAGES.items():
        file = ROOT / name
        file.write_text(with_tree(file.read_text(), modules=modules))
