"""Nothing in the sources runs what it reads, and nothing waits without a bound. Walks the syntax tree of every file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import foresee

SOURCE = Path(foresee.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "jsonpickle", "code"}
CALLS = {
    "eval", "exec", "compile", "__import__", "torch.load", "torch.save", "torch.jit.load", "torch.hub.load",
    "os.system", "os.popen", "yaml.unsafe_load", "yaml.full_load", "pandas.read_pickle", "runpy.run_path",
    "runpy.run_module", "np.fromfile", "numpy.fromfile",
}  # fmt: skip
BOUNDED_BY_POSITION = {"wait": 0, "join": 0, "acquire": 1, "wait_for": 1, "result": 0, "exception": 0, "communicate": 1}
"""Methods that wait, and where their bound stands if it has no name."""
WAITS_WITH_A_REASON = {
    "cluster/reproduction.py": "the result of a simulation on paper, no wait",
    "cluster/simulation.py": "the result of a simulation on paper, no wait",
    "engine/channel.py": "holds as many items as its capacity says; put waits for room",
    "run/evaluation.py": "the result of a sum, no wait",
    "io/readahead.py": "pieces of files within a bound on bytes, read with the patience of a storage",
    "io/uploads.py": "its own thread, which is woken by jobs and by whoever closes",
    "store/disk/backed_up.py": "a copy on its way, which sees that the store loads and gives up",
    "tools/explain/paper_log.py": "as many steps as a write-back takes until it is applied",
    "launch/ray_engine.py": "its own thread, which looks whether it is closed many times a second",
    "plan/grouped.py": "as many batches as the windows of the groups have",
    "plan/in_flight.py": "as many batches as are in flight",
    "run/tasks.py": "the result of a sum, no wait",
    "testing/engine_suite.py": "a process that was killed",
    "launch/fork_server.py": "a process whose input was closed, or that was killed",
    "engine/kernels/check.py": "the work of one kernel, which computes and never waits",
    "engine/run.py": "the start of the pipeline, which opens nothing that waits without a deadline",
    "run/metrics.py": "the result of a sum, no wait",
    "engine/exchange/mesh.py": "a collective, which has torch's timeout",
    "engine/exchange/peers.py": "a collective, which has torch's timeout",
    "engine/pipeline.py": "woken by threads that use a store whose every wait has a deadline, and by whoever closes",
    "engine/planner_service/server.py": "woken by workers; whoever asks has a deadline, and close ends the thread",
    "engine/feed.py": "woken by the training loop at every step, and by close when it ends",
    "engine/exchange/dense.py": "a collective, which has torch's timeout",
    "engine/planned_step.py": "as many batches as the window has",
    "plan/lookahead.py": "as many batches as the window has",
    "plan/ownership.py": "as many batches as the window has",
    "plan/variants.py": "as many batches as the window has, and fetches that staging has room for",
    "engine/next_uses.py": "three segments, and chunks of a file whose steps are bounded",
    "plan/baselines/replicated.py": "as many batches as the window has",
    "store/remote/store.py": "requests whose every wait has a deadline",
    "store/rpc/endpoint.py": "its own thread: woken by whoever watches, and ended by close",
    "store/server/rows.py": "held for one piece of rows, never while a request waits",
    "testing/simulation/trainer.py": "one thread, simulated: nobody waits, and steps in hand are bounded by the plan",
    "testing/commit_suites.py": "a thread of a test, which has a timeout of its own",
    "testing/store_suite.py": "a thread of a test, which has a timeout of its own",
    "testing/delays.py": "threads of a test, which has a timeout of its own",
}
"""Files that wait without a number, and why each of them ends: others must have one."""


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def dangers(text: str) -> Iterator[str]:
    """What a source does that could run a stranger's bytes."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"{node.lineno}: imports {name}" for name in names if name.split(".")[0] in MODULES)
        if not isinstance(node, ast.Call):
            continue
        name, keywords = dotted(node.func), {it.arg: it.value for it in node.keywords}
        if name in CALLS:
            yield f"{node.lineno}: calls {name}"
        if name == "yaml.load" and "SafeLoader" not in ast.dump(node) and "_Loader" not in ast.dump(node):
            yield f"{node.lineno}: yaml.load without a safe loader"
        for keyword in ("allow_pickle", "shell", "trust_remote_code"):
            value = keywords.get(keyword)
            if value is not None and not (isinstance(value, ast.Constant) and value.value is False):
                yield f"{node.lineno}: {name}({keyword}=…)"


def waits(text: str) -> Iterator[str]:
    """Calls that could wait for ever."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        keywords = {it.arg for it in node.keywords}
        if dotted(node.func) in ("queue.Queue", "Queue", "SimpleQueue", "deque") and not node.args and not keywords:
            yield f"{node.lineno}: a queue without a bound"
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in BOUNDED_BY_POSITION:
            continue
        name, place = node.func.attr, BOUNDED_BY_POSITION[node.func.attr]
        if dotted(node.func).endswith("path.join") or isinstance(node.func.value, ast.Constant | ast.JoinedStr):
            continue  # joins of texts and paths
        if len(node.args) > place or keywords & {"timeout", "timeout_seconds", "seconds"} or None in keywords:
            continue
        yield f"{node.lineno}: {name} without a bound"


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_nothing_runs_what_it_reads(path: Path) -> None:
    assert list(dangers(path.read_text("utf-8"))) == []


def test_every_wait_has_a_bound_or_a_reason() -> None:
    found = {path.relative_to(SOURCE).as_posix(): list(waits(path.read_text("utf-8"))) for path in sources()}
    unbounded = {place: lines for place, lines in found.items() if lines and place not in WAITS_WITH_A_REASON}
    assert unbounded == {}, "give these a timeout, or say here why they end"
    assert [place for place in WAITS_WITH_A_REASON if not found.get(place)] == [], "these have bounds by now"


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from marshal import loads", "eval('1')", "torch.load(f)", "np.load(f, allow_pickle=True)",
     "yaml.load(t, Loader=yaml.Loader)", "subprocess.run('ls', shell=True)", "import shelve as s"],
)  # fmt: skip
def test_dangers_are_seen(text: str) -> None:
    assert list(dangers(text))


@pytest.mark.parametrize(
    ("text", "seen"),
    [("event.wait()", True), ("event.wait(5)", False), ("thread.join()", True), ("', '.join(x)", False),
     ("thread.join(timeout=3)", False), ("queue.Queue()", True), ("queue.Queue(5)", False), ("lock.acquire()", True),
     ("future.result()", True), ("condition.wait_for(f, 3)", False), ("condition.wait_for(f)", True)],
)  # fmt: skip
def test_waits_are_seen(text: str, seen: bool) -> None:
    assert bool(list(waits(text))) == seen
