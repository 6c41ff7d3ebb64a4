"""The rooms of `foresee` import downwards only, nothing anywhere runs what it reads, and the house stays small.

Walks the syntax tree of every source file, imports inside functions included. A breach is a sentence that names the
file, what it does and the rule. The rules of the house: few files, none long, one training loop, and names of stores
and policies where they belong, so that one more of them is one file.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import foresee

SOURCE = Path(foresee.__file__).parent


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What the files of one folder may import."""

    may: frozenset[str]
    """Other parts of foresee."""
    reason: str
    outside: frozenset[str] | None = None
    """Packages and modules from outside; None: any but those forbidden."""
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
NO_TORCH = frozenset({"torch"})
BOTTOM = frozenset({"base", "errors"})
DATA = BOTTOM | {"data.batch"}
"""What a batch is; rooms below `run` know no log."""
ENGINE = DATA | {"plan", "store", "engine", "models.contract"}
RUN = BOTTOM | {"rpc", "data", "plan", "store", "models", "engine", "custom_data", "planner_service", "run"}

LAYERS = {
    "errors.py": Layer(may=frozenset(), reason="errors are at the bottom", outside=frozenset({"__future__"})),
    "base": Layer(may=BOTTOM, reason="base is at the bottom", never=NO_TORCH),
    "rpc": Layer(may=BOTTOM, reason="both wires share rpc, which knows neither", never=NO_TORCH),
    "data": Layer(may=BOTTOM, reason="data knows formats, not training", never=NO_TORCH),
    "plan": Layer(may=BOTTOM, reason="plans are pure", outside=PURE_STANDARD | {"numpy", "numba", "llvmlite"}),
    "store": Layer(may=BOTTOM | {"rpc", "plan.record"}, reason="a store knows rows, not training", never=NO_TORCH),
    "models": Layer(may=frozenset(), reason="models know nothing of us", outside=PURE_STANDARD | {"torch", "warnings"}),
    "engine": Layer(may=ENGINE, reason="the engine carries out plans and knows neither logs nor run files"),
    "custom_data": Layer(may=ENGINE, reason="batches of one's own need no log and no run file"),
    "planner_service": Layer(may=ENGINE | {"rpc"}, reason="the planner service plans for whoever asks"),
    "run": Layer(may=RUN, reason="a run does not know who started it or looks at it"),
    "launch": Layer(may=RUN | {"launch"}, reason="the launcher starts processes and analyses nothing"),
    "analysis": Layer(may=RUN | {"graph.config"}, reason="analysis looks at plans and runs and starts nothing"),
    "graph": Layer(may=RUN | {"graph", "cli.options", "report"}, reason="graphs are trained by what a run is made of"),
    "report": Layer(may=BOTTOM, reason="a report reads run records only", never=NO_TORCH),
    "cluster": Layer(may=BOTTOM, reason="the cluster stands beside the rest", never=NO_TORCH),
}
ANYTHING = {"testing", "cli", "__init__.py", "__main__.py"}

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
    """What a file of this place and with this text does that its layer forbids, in sentences."""
    place = place_of(path)
    folder = place.split("/")[0]
    tree = ast.parse(text)
    found = [f"{place} {what}" for what in _dangers(tree)]
    if folder in ANYTHING:
        return found
    if folder not in LAYERS:
        return [*found, f"{place} is in no layer: add {folder} to LAYERS and say what it may import"]
    layer = LAYERS[folder]
    for name in imports(tree, path):
        if not _allowed(name, folder, layer):
            found.append(f"{place} imports {name.removeprefix('foresee.')}: {layer.reason}")
    return found


def _allowed(name: str, folder: str, layer: Layer) -> bool:
    top, _, inside = name.partition(".")
    if top == "foresee":
        return any(inside == part or inside.startswith(f"{part}.") for part in layer.may | {folder.removesuffix(".py")})
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
        ("plan/workers/own.py", "from ...engine import loop", "plan/workers/own.py imports engine.loop: plans"),
        ("models/dlrm.py", "from ..data.batch import Batch", "models/dlrm.py imports data.batch.Batch: models know"),
        ("store/memory.py", "import foresee.plan.lookahead", "store/memory.py imports plan.lookahead: a store knows"),
        ("data/order.py", "import torch.nn", "data/order.py imports torch.nn: data knows formats, not training"),
        ("engine/loop.py", "from foresee.testing import traces", "engine/loop.py imports testing.traces: the engine"),
        ("engine/loop.py", "from foresee.run import training", "engine/loop.py imports run.training: the engine"),
        ("engine/loop.py", "from foresee.data import ClickLog", "engine/loop.py imports data.ClickLog: the engine"),
        ("run/worker.py", "from foresee.launch import restarts", "run/worker.py imports launch.restarts: a run"),
        ("launch/launcher.py", "import foresee.tools", "launch/launcher.py imports analysis: the launcher"),
        ("rpc/endpoint.py", "from foresee.store import remote", "rpc/endpoint.py imports store.remote: both wires"),
        ("base/files.py", "from foresee.plan import record", "base/files.py imports plan.record: base is"),
        ("engine/loop.py", "import pickle", "engine/loop.py imports pickle: data must never"),
        ("testing/traces.py", "from pickle import loads", "testing/traces.py imports pickle: data must never"),
        ("cli/train.py", "x = eval('1')", "cli/train.py calls eval in line 1"),
        ("run/checkpoint.py", "import torch\ntorch.load('x')", "run/checkpoint.py calls torch.load in line 2"),
        ("cli/train.py", "run('ls', shell=True)", "cli/train.py starts a shell in line 1"),
        ("store/memory.py", "np.load(path, allow_pickle=allow)", "store/memory.py allows pickle in line 1"),
        ("misc/a.py", "", "misc/a.py is in no layer"),
    ],
)  # fmt: skip
def test_a_breach_is_a_sentence(place: str, text: str, sentence: str) -> None:
    found = breaches(SOURCE / place, text)
    assert any(sentence in breach for breach in found), found


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("plan/lookahead.py", "import numba\nfrom foresee.arrays import Int64\nfrom .record import Record"),
        ("store/memory.py", "from foresee.plan.record import Record\nimport os"),
        ("engine/loop.py", "import foresee.plan\nfrom foresee.models.contract import Model\nmodel.eval()"),
        ("cli/train.py", "run(['ls'], shell=False)\nfrom foresee.engine import loop"),
    ],
)
def test_what_is_allowed_is_no_breach(place: str, text: str) -> None:
    assert breaches(SOURCE / place, text) == []


def test_every_layer_is_there() -> None:
    """A layer that was renamed would be guarded no more."""
    places = {place_of(path).split("/")[0] for path in sources()}
    assert set(LAYERS) - {"run/config.py"} <= places
    assert len(sources()) > 60
    assert sys.version_info >= (3, 11)


FILES_MAX = 353
"""Without graphs, which keep to the limits of a room."""
FILES_OF_A_FOLDER_MAX = 40
FILES_OF_A_ROOM_MAX = 60
LINES_MAX = 400
STORES = {"disk", "memory"}
POLICIES = {"lru", "lfu", "static"}
"""Names that would show up in other files if these knew which policies there are."""
FIXING_BUCKETS = ("engine/exchange/dense.py", "together().backward")
"""Before training: it carries no loss back and its gradients are dropped."""
WARM_UP = "launch/fork_server.py"
"""Carries a gradient back to load the kernels; it trains nothing."""


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


def test_the_house_has_few_files() -> None:
    places = [Path(place_of(path)) for path in sources()]
    folders = Counter(place.parent.as_posix() for place in places)
    rooms = Counter(place.parts[0] for place in places if len(place.parts) > 1)
    house = len(places) - rooms["graph"]
    assert house <= FILES_MAX, f"there are {house} files; merge what is one thing"
    assert max(folders.values()) <= FILES_OF_A_FOLDER_MAX, folders.most_common(1)
    assert max(rooms.values()) <= FILES_OF_A_ROOM_MAX, rooms.most_common(1)


def test_no_file_is_long() -> None:
    lines = {place_of(path): len(path.read_text("utf-8").splitlines()) for path in sources()}
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


@pytest.mark.parametrize("module", ["rpc.endpoint", "rpc.limits", "planner_service.client", "store.remote"])
def test_either_side_of_a_wire_can_be_imported_first(module: str) -> None:
    """As `foresee plan-server` and `foresee serve` do, each in a process of its own."""
    subprocess.run([sys.executable, "-c", f"import foresee.{module}"], check=True, timeout=60)
