"""Names and import paths to models, and the sentence for everything a person can get wrong in between."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from foresee.errors import ConfigError
from foresee.models import DLRM, MODELS, LogShape
from foresee.run.by_name import build, find_model, row_width

SHAPE = LogShape(num_dense=2, num_features=3)

USER_MODULE = """
import torch

class Plain(torch.nn.Module):
    def __init__(self, shape, dim, *, scale=1.0):
        super().__init__()
        self.last = torch.nn.Linear(shape.num_dense + shape.num_features * dim, 1)
        self.scale = scale
    def forward(self, dense, embeddings):
        return self.scale * self.last(torch.cat((dense, embeddings.flatten(1)), dim=1)).squeeze(1)

class Wide(Plain):
    @classmethod
    def row_width(cls, dim):
        return 3 * dim

class Anything(Plain):
    def __init__(self, shape, dim, **options):
        super().__init__(shape, dim)
        self.options = options

class Fails(Plain):
    def __init__(self, shape, dim):
        raise ValueError("inside")

class Narrow(Plain):
    @classmethod
    def row_width(cls, dim):
        return 0

def no_module(shape, dim):
    return 5

NUMBER = 5
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the folder a command is started in, which is not on the search path."""
    (tmp_path / "model_of_a_user.py").write_text(USER_MODULE)
    (tmp_path / "model_that_fails.py").write_text("import no_such_package_anywhere")
    (tmp_path / "model_with_a_typo.py").write_text("class Broken(:")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "model_of_a_user"
    sys.modules.pop("model_of_a_user", None)


@pytest.mark.parametrize("name", MODELS)
def test_names_give_models(name: str) -> None:
    model = build(name, SHAPE, 4)
    assert type(model) is MODELS[name]
    assert model(torch.zeros(5, 2), torch.zeros(5, 3, row_width(name, 4))).shape == (5,)


def test_options_arrive() -> None:
    model = build("dlrm", SHAPE, 4, bottom=[6], top=[7, 5])
    assert isinstance(model, DLRM)
    assert [p.shape[0] for n, p in model.named_parameters() if n.endswith("bias")] == [6, 4, 7, 5, 1]


@pytest.mark.parametrize(
    ("name", "width"), [("dlrm", 8), ("deepfm", 9), ("wide_and_deep", 9), ("dcn_v2", 8), ("ncf", 16)]
)
def test_row_width_is_known_before_the_model(name: str, width: int) -> None:
    assert row_width(name, 8) == width


def test_a_users_model_by_import_path(user_module: str) -> None:
    model = build(f"{user_module}:Plain", SHAPE, 4, scale=2.0)
    assert model.scale == 2.0
    assert model(torch.zeros(5, 2), torch.zeros(5, 3, 4)).shape == (5,)
    assert row_width(f"{user_module}:Plain", 4) == 4
    assert row_width(f"{user_module}:Wide", 4) == 12


def test_a_users_model_may_take_any_option(user_module: str) -> None:
    assert build(f"{user_module}:Anything", SHAPE, 4, colour="red").options == {"colour": "red"}


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("dlmr", {}, "model 'dlmr' is unknown: give one of dlrm, deepfm, .* or your own as package.module:Class"),
        ("dlrm:", {}, "model 'dlrm:' is unknown"),
        (":DLRM", {}, "model ':DLRM' is unknown"),
        ("dlrm", {"botom": [4]}, "model 'dlrm' has no option 'botom': it takes bottom, top"),
        ("dlrm", {"bottom": 4}, r"model 'dlrm': bottom is 4: give a list of layer widths such as \[512, 256\]"),
        ("no_such_module:Model", {}, "module 'no_such_module' cannot be imported.*No module named"),
        ("model_that_fails:Model", {}, "cannot be imported.*no_such_package_anywhere"),
        ("model_with_a_typo:Broken", {}, "cannot be imported.*SyntaxError"),
        ("model_of_a_user:Missing", {}, "module 'model_of_a_user' has no class 'Missing'"),
        ("model_of_a_user:NUMBER", {}, "module 'model_of_a_user' has no class 'NUMBER'"),
        ("model_of_a_user:no_module", {}, "gives a int: it must give a torch.nn.Module"),
        ("model_of_a_user:Fails", {"depth": 3}, "has no option 'depth': it takes none"),
        ("model_of_a_user:Plain", {"depth": 3}, "has no option 'depth': it takes scale"),
    ],
)
def test_mistakes_are_one_sentence(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        build(name, SHAPE, 4, **options)
    assert "\n" not in str(caught.value)


def test_a_width_that_is_none_is_refused(user_module: str) -> None:
    with pytest.raises(ConfigError, match=r"row_width\(4\) gives 0"):
        row_width(f"{user_module}:Narrow", 4)


def test_an_exception_of_the_users_constructor_stays_theirs(user_module: str) -> None:
    with pytest.raises(ValueError, match=r"^inside$"):
        build(f"{user_module}:Fails", SHAPE, 4)


def test_a_file_in_the_folder_hides_no_installed_package(user_module: str, tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("rgb_to_hsv = None")
    find_model(f"{user_module}:Plain")
    assert sys.path[-1] == str(tmp_path)
    assert callable(find_model("colorsys:rgb_to_hsv"))
