"""What holds for every model: shapes, gradients, logs without dense features, determinism, learning, clear refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from foresee.models import DLRM, MODELS, NCF, DCNv2, DeepFM, LogShape, WideAndDeep
from foresee.models.contract import accepts_deferred_embeddings

SAMPLES = 7
SMALL: dict[str, dict[str, Any]] = {
    "dlrm": {"bottom": [16], "top": [16]},
    "deepfm": {"deep": [16]},
    "wide_and_deep": {"deep": [16]},
    "dcn_v2": {"num_cross": 2, "deep": [16]},
    "ncf": {"deep": [16, 8]},
}
SHAPES = [LogShape(num_dense=dense, num_features=features) for dense in (0, 1, 5) for features in (1, 2, 6)]


def small(name: str, shape: LogShape, dim: int = 4, **options: Any) -> nn.Module:
    return MODELS[name](shape, dim, **(SMALL[name] | options))


def width_of(name: str, dim: int = 4) -> int:
    row_width = MODELS[name].row_width  # type: ignore[attr-defined]
    return int(row_width(dim))


def random_input(shape: LogShape, width: int, samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, shape.num_dense), torch.randn(samples, shape.num_features, width)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_every_model_is_listed_under_its_name() -> None:
    assert {"dlrm": DLRM, "deepfm": DeepFM, "wide_and_deep": WideAndDeep, "dcn_v2": DCNv2, "ncf": NCF} == MODELS


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MODELS)
def test_one_logit_for_each_sample(name: str, shape: LogShape) -> None:
    model = small(name, shape)
    dense, embeddings = random_input(shape, width_of(name))
    assert model(dense, embeddings).shape == (SAMPLES,)
    assert model(dense[:1], embeddings[:1]).shape == (1,)


@pytest.mark.parametrize("name", MODELS)
def test_defaults_make_a_model(name: str) -> None:
    shape = LogShape(num_dense=2, num_features=3)
    assert MODELS[name](shape, 4)(*random_input(shape, width_of(name))).shape == (SAMPLES,)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("num_dense", [0, 3])
def test_gradients_reach_every_column_and_every_weight(name: str, num_dense: int) -> None:
    shape = LogShape(num_dense=num_dense, num_features=3)
    model = small(name, shape)
    dense, embeddings = random_input(shape, width_of(name), samples=64)
    embeddings.requires_grad_()
    model(dense, embeddings).square().sum().backward()
    assert embeddings.grad is not None
    assert bool((embeddings.grad.abs().amax(dim=0) > 0).all())
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert not parameter.numel() or bool((parameter.grad != 0).any()), parameter_name


@pytest.mark.parametrize("name", MODELS)
def test_a_sample_knows_only_itself(name: str) -> None:
    shape = LogShape(num_dense=3, num_features=4)
    model = small(name, shape).double()
    dense, embeddings = (tensor.double() for tensor in random_input(shape, width_of(name)))
    together = model(dense, embeddings)
    alone = torch.cat([model(dense[i : i + 1], embeddings[i : i + 1]) for i in range(SAMPLES)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_function(name: str) -> None:
    shape = LogShape(num_dense=2, num_features=3)
    model = small(name, shape).double()
    dense, embeddings = (tensor.double().requires_grad_() for tensor in random_input(shape, width_of(name), samples=3))
    assert torch.autograd.gradcheck(model, (dense, embeddings))


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_decides_the_weights(name: str) -> None:
    def weights(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return list(small(name, LogShape(num_dense=3, num_features=4)).state_dict().values())

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not all(torch.equal(one, two) for one, two in zip(first, other, strict=True))


@pytest.mark.parametrize("num_dense", [0, 4])
@pytest.mark.parametrize("name", MODELS)
def test_learns_a_planted_problem_the_same_way_twice(name: str, num_dense: int) -> None:
    first, again = (losses_of_training(name, num_dense) for _ in range(2))
    assert first == again
    assert first[-1] < 0.25 < 0.5 < first[0]


def losses_of_training(name: str, num_dense: int, num_steps: int = 150) -> list[float]:
    """Users and items of two kinds: a click when the kinds agree, which no sum over single features can say."""
    torch.manual_seed(3)
    shape = LogShape(num_dense=num_dense, num_features=2)
    model = small(name, shape)
    rows = nn.Parameter(0.1 * torch.randn(20, width_of(name)))
    ids = torch.stack((torch.randint(0, 10, (256,)), torch.randint(10, 20, (256,))), dim=1)
    labels = (ids[:, 0] % 2 == ids[:, 1] % 2).float()
    dense = torch.randn(256, num_dense)
    adam = torch.optim.Adam([*model.parameters(), rows], lr=0.02)
    losses = []
    for _ in range(num_steps):
        loss = binary_cross_entropy_with_logits(model(dense, rows[ids]), labels)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", MODELS)
def test_saved_weights_are_all_a_model_is(name: str) -> None:
    shape = LogShape(num_dense=2, num_features=3)
    model, other = small(name, shape), small(name, shape)
    other.load_state_dict(model.state_dict())
    dense, embeddings = random_input(shape, width_of(name))
    assert torch.equal(model(dense, embeddings), other(dense, embeddings))


class _Log:
    """Something with more to it than a shape, as a click log is."""

    num_dense = 2
    num_features = 3


@pytest.mark.parametrize("name", MODELS)
def test_takes_a_log_and_does_not_keep_it(name: str) -> None:
    log = _Log()
    model = MODELS[name](log, dim=4)
    assert model.shape == LogShape(num_dense=2, num_features=3)
    assert all(value is not log for module in model.modules() for value in vars(module).values())


@pytest.mark.parametrize("name", MODELS)
def test_tensors_of_another_shape_are_refused(name: str) -> None:
    shape = LogShape(num_dense=2, num_features=3)
    model = small(name, shape)
    dense, embeddings = random_input(shape, width_of(name))
    with pytest.raises(ValueError, match=r"dense has shape \(7, 1\), this model takes \(7, 2\)"):
        model(dense[:, :1], embeddings)
    with pytest.raises(ValueError, match=r"make the tables row_width\(dim\) wide"):
        model(dense, embeddings[:, :, :-1])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("num_dense", "num_features", "dim", "sentence"),
    [(0, 0, 4, "num_features is 0"), (-1, 2, 4, "num_dense is -1"), (1, 2, 0, "dim is 0"), (1, 2, 4.0, "dim is 4.0")],
)
def test_sizes_that_make_no_model_are_refused(
    name: str, num_dense: int, num_features: int, dim: int, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        MODELS[name](LogShape(num_dense=num_dense, num_features=num_features), dim)


@pytest.mark.parametrize("widths", ["512", 512, [0], [16, -1], [2.5], [True], [None]])
@pytest.mark.parametrize(
    ("name", "option"), [("dlrm", "bottom"), ("dlrm", "top"), *((name, "deep") for name in MODELS if name != "dlrm")]
)
def test_layer_widths_that_make_no_layer_are_refused(name: str, option: str, widths: Sequence[int]) -> None:
    with pytest.raises(ValueError, match=f"^{option} (is|holds) "):
        small(name, LogShape(num_dense=1, num_features=2), dim=4, **{option: widths})


@pytest.mark.parametrize("name", ["wide_and_deep", "deepfm", "dcn_v2", "ncf"])
def test_no_hidden_layers_is_allowed(name: str) -> None:
    shape = LogShape(num_dense=1, num_features=2)
    assert small(name, shape, deep=[])(*random_input(shape, width_of(name))).shape == (SAMPLES,)


@pytest.mark.parametrize("num_dense", [0, 3])
def test_dlrm_asks_for_its_embeddings_when_the_bottom_is_done(num_dense: int) -> None:
    torch.manual_seed(0)
    model = DLRM(LogShape(num_dense=num_dense, num_features=2), 4, bottom=(5,), top=(6,))
    dense, embeddings, events = torch.randn(7, num_dense), torch.randn(7, 2, 4), list[str]()
    model.bottom.register_forward_hook(lambda *_: events.append("bottom"))

    def arrive() -> torch.Tensor:
        events.append("rows")
        return embeddings

    assert accepts_deferred_embeddings(model)
    assert torch.equal(model(dense, arrive), model(dense, embeddings))
    assert events == ["bottom", "rows", "bottom"]
    with pytest.raises(ValueError, match="dense has shape"):
        model(torch.randn(7, num_dense + 1), arrive)
    assert events == ["bottom", "rows", "bottom"], "what is wrong before the rows is said before them"
    assert not accepts_deferred_embeddings(torch.nn.Linear(1, 1))


def test_the_former_name_of_a_deferred_model_still_counts() -> None:
    class Former(torch.nn.Module):
        begins_without_rows = True

    with pytest.warns(DeprecationWarning, match="now called accepts_deferred_embeddings"):
        assert accepts_deferred_embeddings(Former())
