"""Imports between the packages of `foresee` point one way, and no file runs what it reads.

Walks the syntax tree of every source file, imports inside functions included. A violation is a sentence that names the
file, the import and the rule. Also here: limits on the number and length of files, one training loop, and names of
stores and policies only where they belong, so that adding one takes one file.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import foresee

SOURCE = Path(foresee.__file__).parent
ROOT_MODULES = frozenset({"errors", "registry", "arrays", "prefetch"})
"""Importable from everywhere; they import only each other, numpy and numba."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What the files of one package may import besides the package itself and the root modules.

    Attributes:
        may: Other packages or modules of foresee.
        reason: Ends the sentence about a violation.
        outside: Installed packages; None: any but those in `never`.
        never: Installed packages that are not allowed.
    """

    may: frozenset[str]
    reason: str
    outside: frozenset[str] | None = None
    never: frozenset[str] = frozenset()


PURE_STANDARD = frozenset(
    {
        "__future__",
        "abc",
        "bisect",
        "collections",
        "contextlib",
        "dataclasses",
        "enum",
        "functools",
        "heapq",
        "itertools",
        "math",
        "typing",
    }
)
NUMERIC = PURE_STANDARD | {"numpy", "numba", "llvmlite"}
NO_TORCH = frozenset({"torch"})


def allow(*names: str) -> frozenset[str]:
    return frozenset(names)


BELOW_RUN = allow("io", "data", "plan", "store", "models", "engine")

LAYERS = {
    "errors": Layer(may=allow(), reason="errors import nothing", outside=allow("__future__")),
    "arrays": Layer(may=allow(), reason="root modules import only each other", outside=NUMERIC),
    "prefetch": Layer(may=allow(), reason="root modules import only each other", outside=NUMERIC),
    "registry": Layer(may=allow(), reason="root modules import only each other", outside=PURE_STANDARD | {"importlib"}),
    "io": Layer(may=allow(), reason="io knows files, not what is in them", never=NO_TORCH),
    "data": Layer(may=allow("io"), reason="data knows formats, not training", never=NO_TORCH),
    "plan": Layer(may=allow(), reason="plans are pure", outside=NUMERIC),
    "plan/format": Layer(may=allow("plan", "io"), reason="plan/format only reads and writes plans", never=NO_TORCH),
    "store": Layer(may=allow("io", "plan"), reason="a store knows rows, not training", never=NO_TORCH),
    "models": Layer(
        may=allow(), reason="models know nothing of foresee", outside=PURE_STANDARD | {"torch", "warnings"}
    ),
    "engine": Layer(may=allow("io", "plan", "store", "data.batch"), reason="the engine knows neither logs nor configs"),
    "run": Layer(may=BELOW_RUN, reason="a run does not know who started it or who looks at it"),
    "graph": Layer(may=BELOW_RUN | {"run"}, reason="a graph is another kind of run"),
    "launch": Layer(may=BELOW_RUN | {"run"}, reason="launch starts processes and analyzes nothing"),
    "cluster": Layer(may=allow("io"), reason="cluster planning is independent of training", never=NO_TORCH),
}
"""Of the entries that a file lies under, the longest applies."""
NESTED = [scope.replace("/", ".") for scope in LAYERS if "/" in scope]
"""Not importable from the package around them."""
UNRESTRICTED = {"testing", "tools", "moved", "__init__", "__main__"}
"""`tools` and `testing` may import everything; nothing below them imports them."""

BANNED_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
BANNED_CALLS = {"eval", "exec", "torch.load", "torch.save", "os.system", "os.popen", "yaml.unsafe_load"}


def sources() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py"))


def place_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def imports(tree: ast.AST, path: Path) -> Iterator[str]:
    """Absolute names of all modules a file imports, relative ones resolved; `from a import b` gives a.b."""
    package = ["foresee", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def breaches(path: Path, text: str) -> list[str]:
    """Return the violations of the layer rules by a file at `path` with this content, as sentences."""
    place = place_of(path)
    tree = ast.parse(text)
    found = [f"{place} {what}" for what in _dangers(tree)]
    package = place.split("/")[0].removesuffix(".py")
    if package in UNRESTRICTED:
        return found
    scopes = [scope for scope in LAYERS if place.removesuffix(".py") == scope or place.startswith(f"{scope}/")]
    if not scopes:
        return [*found, f"{place} is in no layer: add {package} to LAYERS and say what it may import"]
    scope = max(scopes, key=len)
    for name in imports(tree, path):
        if not _allowed(name, scope, LAYERS[scope]):
            found.append(f"{place} imports {name.removeprefix('foresee.')}: {LAYERS[scope].reason}")
    return found


def _allowed(name: str, scope: str, layer: Layer) -> bool:
    top, _, inside = name.partition(".")
    if top == "foresee":
        own = scope.replace("/", ".")
        if any(inside.startswith(f"{inner}.") for inner in NESTED if inner.startswith(f"{own}.")):
            return False
        return any(inside == part or inside.startswith(f"{part}.") for part in layer.may | ROOT_MODULES | {own})
    if top in layer.never:
        return False
    return layer.outside is None or top in layer.outside


def _dangers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if name.split(".")[0] in BANNED_MODULES:
                yield f"imports {name}: data must never be able to run code"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in BANNED_CALLS:
                yield f"calls {called} in line {node.lineno}: nothing that is read may be run"
            given = {keyword.arg for keyword in node.keywords if not _is_false(keyword.value)}
            if "shell" in given:
                yield f"starts a shell in line {node.lineno}: give the arguments as a list"
            if "allow_pickle" in given:
                yield f"allows pickle in line {node.lineno}: data must never be able to run code"


def _is_false(value: ast.expr) -> bool:
    """Anything that is not plainly False may be true."""
    return isinstance(value, ast.Constant) and value.value is False


@pytest.mark.parametrize("path", sources(), ids=place_of)
def test_every_file_keeps_to_its_layer(path: Path) -> None:
    found = breaches(path, path.read_text("utf-8"))
    assert not found, "; ".join(found)


@pytest.mark.parametrize(
    ("place", "text", "sentence"),
    [
        ("plan/lookahead.py", "from foresee.store.memory import MemoryStore", "imports store.memory.MemoryStore: "),
        ("plan/lookahead.py", "from foresee import store", "plan/lookahead.py imports store: plans are pure"),
        ("plan/lookahead.py", "def f():\n    import torch", "plan/lookahead.py imports torch: plans are pure"),
        ("plan/lookahead.py", "import time", "plan/lookahead.py imports time: plans are pure"),
        ("plan/lookahead.py", "from foresee.io import files", "plan/lookahead.py imports io.files: plans are pure"),
        ("plan/baselines/lru.py", "from ...engine import run", "plan/baselines/lru.py imports engine.run: plans"),
        ("plan/format/file.py", "from foresee.store import memory", "plan/format/file.py imports store.memory: plan/"),
        (
            "plan/check.py",
            "from foresee.plan.format import file",
            "plan/check.py imports plan.format.file: plans are pure",
        ),
        ("registry.py", "from foresee.io import files", "registry.py imports io.files: root modules"),
        ("models/dlrm.py", "from ..data.batch import Batch", "models/dlrm.py imports data.batch.Batch: models know"),
        ("store/memory.py", "import foresee.engine.run", "store/memory.py imports engine.run: a store knows"),
        ("data/order.py", "import torch.nn", "data/order.py imports torch.nn: data knows formats, not training"),
        ("data/batches.py", "from foresee.run import bags", "data/batches.py imports run.bags: data knows"),
        ("engine/run.py", "from foresee.testing import traces", "engine/run.py imports testing.traces: the engine"),
        ("engine/run.py", "from foresee.run import session", "engine/run.py imports run.session: the engine"),
        ("engine/run.py", "def f():\n    from foresee.data import ClickLog", "engine/run.py imports data.ClickLog: "),
        ("run/worker.py", "from foresee.launch import decisions", "run/worker.py imports launch.decisions: a run"),
        ("run/worker.py", "def f():\n    from foresee.graph import task", "run/worker.py imports graph.task: a run"),
        (
            "graph/build.py",
            "from foresee.tools.cli import options",
            "graph/build.py imports tools.cli.options: a graph",
        ),
        ("launch/launcher.py", "import foresee.tools", "launch/launcher.py imports tools: launch"),
        ("io/files.py", "from foresee.plan import record", "io/files.py imports plan.record: io knows"),
        ("cluster/job.py", "from foresee.run import config", "cluster/job.py imports run.config: cluster planning"),
        ("engine/run.py", "import pickle", "engine/run.py imports pickle: data must never"),
        ("testing/traces.py", "from pickle import loads", "testing/traces.py imports pickle: data must never"),
        ("tools/cli/train.py", "x = eval('1')", "tools/cli/train.py calls eval in line 1"),
        ("run/checkpoint.py", "import torch\ntorch.load('x')", "run/checkpoint.py calls torch.load in line 2"),
        ("tools/cli/train.py", "run('ls', shell=True)", "tools/cli/train.py starts a shell in line 1"),
        ("store/memory.py", "np.load(path, allow_pickle=allow)", "store/memory.py allows pickle in line 1"),
        ("misc/a.py", "", "misc/a.py is in no layer"),
    ],
)
def test_a_violation_is_a_sentence(place: str, text: str, sentence: str) -> None:
    found = breaches(SOURCE / place, text)
    assert any(sentence in breach for breach in found), found


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("plan/lookahead.py", "import numba\nfrom foresee.arrays import Int64\nfrom .record import Record"),
        ("plan/format/file.py", "import pyarrow\nfrom foresee.io.files import Files\nfrom ..record import Record"),
        ("store/memory.py", "from foresee.plan.record import Record\nimport os"),
        ("engine/run.py", "import foresee.plan\nfrom foresee.data.batch import Batch\nmodel.eval()"),
        ("tools/cli/train.py", "run(['ls'], shell=False)\nfrom foresee.engine import run"),
    ],
)
def test_allowed_imports_are_no_violation(place: str, text: str) -> None:
    assert breaches(SOURCE / place, text) == []


def test_every_layer_exists() -> None:
    """A renamed package would no longer be checked."""
    for scope in LAYERS:
        assert (SOURCE / scope).is_dir() or (SOURCE / f"{scope}.py").is_file(), scope
    packages = {place_of(path).split("/")[0].removesuffix(".py") for path in sources()}
    assert packages == {scope for scope in LAYERS if "/" not in scope} | UNRESTRICTED


PACKAGES = 12
FILES_MAX = 397
LINES_MAX = 500
STORES = {"disk", "memory"}
POLICIES = {"lru", "lfu", "static"}
"""Names that would show up in other files if these knew which policies there are."""
FIXING_BUCKETS = ("engine/exchange/dense.py", "together().backward")
"""Runs before training; its gradients are dropped."""
WARM_UP = "launch/fork_server.py"
"""Runs one backward pass to load the kernels; it does not train."""


def training_loops(place: str, tree: ast.AST) -> list[str]:
    """Where a loss is carried back: a loop over steps that trains has to do that once."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [call for call in calls if isinstance(call, ast.Attribute) and call.attr == "backward"]
    others = [call for call in found if place != WARM_UP and (place, ast.unparse(call)) != FIXING_BUCKETS]
    return [f"{place}:{call.lineno} calls {ast.unparse(call)}" for call in others]


def store_comparisons(place: str, tree: ast.AST) -> list[str]:
    """Where code asks which store it has, by name, instead of what that store can do."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            about_stores = any(ast.unparse(side).split(".")[-1].split("_")[-1] == "store" for side in sides)
            if about_stores and any(texts(side) & STORES for side in sides):
                found.append(f"{place}:{node.lineno} compares {ast.unparse(node)}")
    return found


def policies_named(tree: ast.AST) -> set[str]:
    """Policies whose names stand in the texts of a file, docstrings and comments left out."""
    quoted = texts(tree)
    words = {word for text in quoted for word in re.findall(r"\b(?:lru|lfu)\b", text)}
    return (quoted & POLICIES) | words


def texts(tree: ast.AST) -> set[str]:
    """Every text below a node, docstrings left out."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return {node.value for node in constants if isinstance(node.value, str)}


def parsed() -> Iterator[tuple[str, ast.Module]]:
    for path in sources():
        yield place_of(path), ast.parse(path.read_text("utf-8"))


def test_the_number_and_length_of_files_is_limited() -> None:
    lines = {place_of(path): len(path.read_text("utf-8").splitlines()) for path in sources()}
    packages = {place.split("/")[0] for place in lines if "/" in place}
    assert len(packages) == PACKAGES
    assert len(lines) <= FILES_MAX, f"there are {len(lines)} files; merge what is one idea"
    assert not {place: number for place, number in lines.items() if number > LINES_MAX}


def test_there_is_one_training_loop() -> None:
    found = [place for name, tree in parsed() for place in training_loops(name, tree)]
    assert len(found) == 1, "; ".join(found)


def test_stores_are_asked_what_they_can_do() -> None:
    found = [place for name, tree in parsed() for place in store_comparisons(name, tree)]
    assert len(found) <= 2, "; ".join(found)


def test_a_policy_is_named_in_its_own_file_only() -> None:
    """Support for tests (`foresee.testing`) may choose among them, as tests do."""
    files = defaultdict(list)
    for place, tree in parsed():
        for policy in policies_named(tree) if not place.startswith("testing/") else ():
            files[policy].append(place)
    assert set(files) == POLICIES
    assert not {policy: places for policy, places in files.items() if len(places) > 1}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""As lru."""\nx = 1  # lru', set()),
        ('def f():\n    """As lru."""\n    return {"lru": 1, "static": 2}', {"lru", "static"}),
        ('x = f"the planner is lfu: {y}"', {"lfu"}),
        ('x = "a static hot set"', set()),
    ],
)
def test_policies_are_found_in_texts(text: str, found: set[str]) -> None:
    assert policies_named(ast.parse(text)) == found


def test_loops_and_comparisons_are_found() -> None:
    text = "for step in run:\n    loss.backward()\nif config.tables.store == 'disk' or which in ('memory',):\n    pass"
    assert training_loops("run/a.py", ast.parse(text)) == ["run/a.py:2 calls loss.backward"]
    assert store_comparisons("run/a.py", ast.parse(text)) == ["run/a.py:3 compares config.tables.store == 'disk'"]
    assert store_comparisons("a.py", ast.parse('"disk" != store')) == ["a.py:1 compares 'disk' != store"]
    assert not store_comparisons("a.py", ast.parse('store == other; kind == "disk"'))


@pytest.mark.parametrize(
    "module", ["store.rpc.endpoint", "store.rpc.limits", "engine.planner_service.client", "store.remote"]
)
def test_either_side_of_a_wire_can_be_imported_first(module: str) -> None:
    """As `foresee plan-server` and `foresee serve` do, each in a process of its own."""
    subprocess.run([sys.executable, "-c", f"import foresee.{module}"], check=True, timeout=60)
