"""Models over sequences: what the papers compute, written out plainly; nothing of one sample in another's answer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from foresee.models import DIN, SASRec, TwoTower, in_batch_loss, next_item_loss

SAMPLES, DIM = 6, 8
LENGTHS = torch.tensor([3, 0, 5, 1, 2, 4])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def padded_interest(model: DIN, candidate: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    """As the paper draws it: every position concatenated with the candidate, padding masked afterwards."""
    parts = torch.split(values, lengths.tolist())
    history = nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
    there = torch.arange(history.shape[1]) < lengths[:, None]
    beside = candidate[:, None].expand_as(history)
    pairs = torch.cat([beside, history, beside - history, beside * history], dim=2)
    weights = model.attention(model.first(pairs).relu()) * there[:, :, None]
    summed: Tensor = (weights * history).sum(dim=1)
    return summed


def test_attention_is_that_of_the_paper_and_so_are_its_gradients() -> None:
    model = DIN(DIM, width_other=2)
    candidate, values = torch.randn(SAMPLES, DIM), torch.randn(int(LENGTHS.sum()), DIM)
    found: list[list[Tensor]] = []
    for interest in (DIN.interest, padded_interest):
        leaves = [candidate.clone().requires_grad_(), values.clone().requires_grad_()]
        model.zero_grad()
        pooled = interest(model, leaves[0], leaves[1], LENGTHS)
        (pooled * torch.arange(pooled.numel()).view_as(pooled)).sum().backward()  # type: ignore[no-untyped-call]
        gradients = [it.grad.clone() for it in (*leaves, model.first.weight) if it.grad is not None]
        found.append([pooled.detach(), *gradients])
    assert len(found[0]) == 4
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
    assert not found[0][0][1].any(), "no history, no interest"
    assert model(candidate, values, LENGTHS, torch.randn(SAMPLES, 2)).shape == (SAMPLES,)


def test_din_without_hidden_layers_and_with_wrong_shapes() -> None:
    candidate, values = torch.randn(SAMPLES, DIM), torch.randn(int(LENGTHS.sum()), DIM)
    assert DIN(DIM, attention=(), deep=())(candidate, values, LENGTHS).shape == (SAMPLES,)
    with pytest.raises(ValueError, match="this model takes \\[samples, 8\\]"):
        DIN(DIM)(candidate[:, :4], values, LENGTHS)


def test_a_position_sees_what_came_before_and_nothing_else() -> None:
    model = SASRec(DIM, positions=7).eval()
    sequence = torch.randn(SAMPLES, 5, DIM)
    changed = sequence.clone()
    changed[:, 3:] = torch.randn(SAMPLES, 2, DIM)
    changed[0] = torch.randn(5, DIM)
    first, second = model(sequence), model(changed)
    assert first.shape == sequence.shape
    torch.testing.assert_close(first[1:, :3], second[1:, :3])
    assert not torch.allclose(first[1:, 3:], second[1:, 3:])
    with pytest.raises(ValueError, match="at most 7 positions"):
        model(torch.randn(1, 8, DIM))
    with pytest.raises(ValueError, match="cannot be divided among 3 heads"):
        SASRec(DIM, positions=7, num_heads=3)


def test_padding_has_no_part_in_the_loss() -> None:
    state, following, others = torch.randn(3, SAMPLES, 5, DIM).unbind()
    loss = next_item_loss(state, following, others, LENGTHS)
    pairs = [(sample, at) for sample, length in enumerate(LENGTHS.tolist()) for at in range(length)]
    right = torch.stack([state[it] @ following[it] for it in pairs])
    wrong = torch.stack([state[it] @ others[it] for it in pairs])
    bce = nn.functional.binary_cross_entropy_with_logits
    torch.testing.assert_close(loss, bce(right, torch.ones_like(right)) + bce(wrong, torch.zeros_like(wrong)))


def test_negatives_of_the_batch_are_never_the_item_itself_and_popular_ones_count_less() -> None:
    model, ids = TwoTower(4, 3, deep=(8, 5)), torch.tensor([7, 2, 7, 1])
    queries, items = model(torch.randn(4, 4), torch.randn(4, 3))
    torch.testing.assert_close(items.norm(dim=1), torch.ones(4))
    shares = torch.tensor([0.4, 0.3, 0.4, 0.01])
    expected = []
    for query in range(4):
        others = [item for item in range(4) if item == query or ids[item] != ids[query]]
        scores = torch.stack([queries[query] @ items[item] / 0.5 - shares[item].log() for item in others])
        expected.append(scores.logsumexp(0) - scores[others.index(query)])
    torch.testing.assert_close(
        in_batch_loss(queries, items, ids, shares=shares, temperature=0.5), torch.stack(expected).mean()
    )
    assert in_batch_loss(queries, items, ids).isfinite()
    with pytest.raises(ValueError, match="deep is empty"):
        TwoTower(4, 3, deep=())
