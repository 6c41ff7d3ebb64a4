"""Types what README and the pages of docs/ say, in their order, in an empty folder, as somebody new to Foresee would.

In: pages. Out: what did not work as printed, or printed more to stderr than a sentence of ours. A page's commands are

- blocks fenced as ```sh,
- blocks fenced as ```python below `<!-- run -->`: scripts of their own, and
- indented blocks whose first line begins with a program's name, or with `$ `; then the other lines are output.

All blocks of a page run in one shell: folders, variables and servers started with & go on to the next block. In a page,
`<!-- not run: why -->` above a block leaves it out, and `<!-- run first:` SCRIPT `-->` is run but not shown, to make
the data that the page starts from: `python "$NEWCOMER/clicks.py"` writes a clicks.csv; or a heredoc, or `foresee demo`.
The folder has `examples/` of the project, and `.venv` is the environment that is used.

    python tests/newcomer/walk.py                     # all pages, with the environment of this Python
    python tests/newcomer/walk.py README.md --fresh   # one page, the project installed into a new environment first
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("foresee ", "python ", "python3 ", "torchrun ", "make ", "pip ", ".venv/bin/", "cat ", "export ", "curl ")
IN_SUITE = ("README.md", "docs/tutorial.md", "docs/prepare.md", "docs/serving.md")
"""Walked by `make test`, in two to three minutes of a core; `make newcomer` walks all pages."""
NOT_RUN = {
    "docs/evidence.md": "benchmarks of half an hour; benchmarks/evidence.py runs them",
    "docs/testing.md": "the long tests; `make chaos` runs them",
}
SMALLER = {r"\bforesee demo$": "foresee demo --samples 20000"}
"""The demo as it is printed takes two minutes; everything else runs as it stands."""
INSTALLS = re.compile(r"^(\S*python3? -m )?pip install .*$", re.MULTILINE)
"""Left out: the environment has it, or --fresh made it."""
FOREIGN = re.compile(r"torch/optim/.*Sparse invariant checks are implicitly|^  return torch.sparse_coo_tensor")
"""What torch says of a script without anything of ours, which a page shows for comparison."""
SECONDS_MAX = 1200


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that a person would paste together."""

    line: int
    script: str


def pages() -> list[str]:
    """Those with something to type."""
    names = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    return [name for name in names if name not in NOT_RUN and list(blocks((ROOT / name).read_text("utf-8")))]


def blocks(page: str) -> Iterator[Block]:
    """The blocks to run, in order."""
    lines, skip, script, at = page.splitlines(), False, False, 0
    while at < len(lines):
        text, begin = lines[at], at
        if text.startswith("<!-- not run:"):
            skip, at = True, _after(lines, at, "-->")
        elif text == "<!-- run -->":
            script, at = True, at + 1
        elif text.startswith("<!-- run first:"):
            at = _after(lines, at, "-->")
            yield Block(begin + 1, _script(lines[begin + 1 : at - 1]))
        elif text.startswith("```"):
            at = _after(lines, at + 1, "```")
            if text.strip() in ("```sh", "```bash", "```console") and not skip:
                yield Block(begin + 1, _script(lines[begin + 1 : at - 1]))
            elif text.strip() == "```python" and script:
                yield Block(
                    begin + 1, "\n".join(["python - <<'END_OF_SCRIPT'", *lines[begin + 1 : at - 1], "END_OF_SCRIPT"])
                )
            skip = script = False
        elif text.startswith("    "):
            at = next((at + n for n, line in enumerate(lines[at:]) if line and not line.startswith("    ")), len(lines))
            some = [line[4:] for line in lines[begin:at]]
            if some[0].startswith((*PROGRAMS, "$ ")) and not skip and not _in_list(lines, begin):
                yield Block(begin + 1, _script(some))
            skip = False
        else:
            skip, at = skip and not text.strip(), at + 1


def _after(lines: Sequence[str], at: int, end: str) -> int:
    """The line after the one that ends something."""
    return next((number + 1 for number in range(at, len(lines)) if end in lines[number]), len(lines))


def _in_list(lines: Sequence[str], begin: int) -> bool:
    """Whether indented text only goes on with what is above it."""
    return begin > 0 and bool(lines[begin - 1].strip())


def _script(lines: Sequence[str]) -> str:
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    script = INSTALLS.sub(":", "\n".join(lines))
    for printed, smaller in SMALLER.items():
        script = re.sub(printed, smaller, script, flags=re.MULTILINE)
    return script


def walk(name: str, *, prefix: Path, folder: Path) -> list[str]:
    """Runs a page in a folder of its own; what went wrong, in sentences."""
    found = list(blocks((ROOT / name).read_text("utf-8")))
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / ".venv").symlink_to(prefix)
    kept = folder / ".kept"
    kept.mkdir()
    script = ["set -euo pipefail", f"trap 'echo \"$BASH_COMMAND\" > {kept}/failed' ERR"]
    for number, block in enumerate(found):
        script += [f"exec > {kept}/{number}.out 2> {kept}/{number}.err", block.script]
    # What the shell runs in the background belongs to it and must not outlive it.
    environment = {**os.environ, "PATH": f"{prefix}/bin:{os.environ['PATH']}", "NEWCOMER": str(Path(__file__).parent)}
    shell = subprocess.Popen(
        ["bash", "-c", "\n".join(script)], cwd=folder, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        code = shell.wait(SECONDS_MAX)
    except subprocess.TimeoutExpired:
        code = -1
    finally:
        _end(shell)
    return list(_wrong(name, found, kept, code))


def _end(shell: subprocess.Popen[bytes]) -> None:
    """All that the page started, by its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(shell.pid, number)
        except ProcessLookupError:
            break
        time.sleep(0.2)
    shell.wait()


def _wrong(name: str, found: Sequence[Block], kept: Path, code: int) -> Iterator[str]:
    last = max((int(path.stem) for path in kept.glob("*.err")), default=0)
    for number, block in enumerate(found[: last + 1]):
        said = (kept / f"{number}.err").read_text("utf-8", errors="replace").splitlines()
        said = [line for line in said if not FOREIGN.search(line)]
        sentences = [line for line in said if line.startswith("foresee: ")]
        if len(said) > len(sentences) or len(sentences) > 1:
            yield f"{name}:{block.line} says more than a sentence on stderr:\n" + "\n".join(said[-30:])
    if code:
        failed = (kept / "failed").read_text() if (kept / "failed").exists() else "a command\n"
        out = (kept / f"{last}.out").read_text("utf-8", errors="replace").splitlines()[-10:]
        how = f"took longer than {SECONDS_MAX} s" if code == -1 else f"ended with {code}"
        said = (kept / f"{last}.err").read_text("utf-8", errors="replace").splitlines()[-10:]
        yield f"{name}:{found[last].line} {how}: {failed}" + "\n".join([*out, *said])


def fresh_environment(folder: Path) -> Path:
    """A new environment with the project in it, as `pip install '.[report,cluster]'` makes it: pages draw."""
    os.environ.pop("PYTHONPATH", None)  # what is installed is walked, not what lies here
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), f"{ROOT}[report,cluster]"], check=True)
    return folder


def main() -> int:
    """Prints a line for each page, and what went wrong."""
    parser = argparse.ArgumentParser(description="Type what the pages say.")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="such as docs/tutorial.md; none: all")
    parser.add_argument("--fresh", action="store_true", help="install the project into a new environment first")
    arguments = parser.parse_args()
    num_wrong = 0
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        prefix = fresh_environment(Path(folder) / "venv") if arguments.fresh else Path(sys.prefix)
        for name in arguments.pages or pages():
            place = Path(folder) / name.replace("/", "-")
            place.mkdir()
            begun = time.monotonic()
            wrong = walk(name, prefix=prefix, folder=place)
            print(f"{name}: {'works' if not wrong else 'does not work'}, {time.monotonic() - begun:.0f} s", flush=True)
            print("".join(f"  {sentence}\n" for sentence in wrong), end="", flush=True)
            num_wrong += len(wrong)
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
