"""The public face: few names, each importable and documented, and importing it starts nothing."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import foresee
import foresee.testing
from foresee.moved import MOVED

PUBLIC = {
    "SGD", "Adagrad", "Batches", "ClickLog", "EmbeddingBagConfig", "EmbeddingBags", "ForeseeError", "LazyAdam",
    "Optimizer", "Planner", "RowwiseAdagrad", "Schedule", "Run", "Source", "Step", "Stop", "Store", "StoreKind",
    "Tables", "Trainers", "checkpoint", "fetches_by_cache", "load_exported", "lookahead", "models",
    "register_optimizer", "register_store", "steps",
}  # fmt: skip


def test_the_names_are_these() -> None:
    """A name given to people is hard to take back: adding one is a decision, so it is made here too."""
    assert set(foresee.__all__) == PUBLIC
    assert len(foresee.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_name_is_documented(name: str) -> None:
    thing = getattr(foresee, name)
    # A dataclass without words gets its signature as a docstring, which tells a person nothing.
    text = inspect.getdoc(thing) or ""
    assert len(text) > 20, f"foresee.{name} has no documentation"
    assert not text.startswith(f"{name}("), f"foresee.{name} has no documentation of its own"


@pytest.mark.parametrize("name", sorted(PUBLIC - {"models"}))
def test_every_public_method_is_documented(name: str) -> None:
    thing = getattr(foresee, name)
    if not inspect.isclass(thing) or issubclass(thing, Exception):
        return
    own = {key: value for key, value in vars(thing).items() if not key.startswith("_")}
    methods = [key for key, value in own.items() if inspect.isfunction(value) or isinstance(value, classmethod)]
    bare = [key for key in methods if not inspect.getdoc(getattr(thing, key))]
    assert not bare, f"foresee.{name}: not documented: {', '.join(bare)}"


@pytest.mark.parametrize("name", foresee.testing.__all__)
def test_every_suite_is_documented(name: str) -> None:
    assert len(inspect.getdoc(getattr(foresee.testing, name)) or "") > 20


def test_the_docstring_shows_the_loop() -> None:
    text = foresee.__doc__ or ""
    for word in ("ClickLog.open", "Tables.on_disk", "foresee.lookahead(", "step.update()"):
        assert word in text


def test_a_star_import_and_a_version() -> None:
    """In a process of its own: a plain import must not warn, print or need anything else to be imported first."""
    code = "from foresee import *; import foresee; print(foresee.__version__, sorted(foresee.__all__)[0])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [foresee.__version__, sorted(PUBLIC)[0]]


def test_importing_needs_no_engine_and_no_cloud() -> None:
    """Extras only: whoever trains on one machine need not install them."""
    names = ("ray", "boto3", "botocore", "kubernetes", "fsspec", "cryptography")
    program = f"import sys\nfor name in {names}: sys.modules[name] = None\nimport foresee, foresee.tools.cli.commands"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("old", MOVED)
def test_a_documented_path_that_moved_still_imports_with_a_warning(old: str) -> None:
    code = (
        "import importlib, warnings\n"
        "warnings.simplefilter('always')\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        f"    old = importlib.import_module({old!r})\n"
        f"new = importlib.import_module({MOVED[old]!r})\n"
        f"assert old is new and new.__spec__.name == {MOVED[old]!r}\n"
        f"assert any({old!r} in str(one.message) for one in seen)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
