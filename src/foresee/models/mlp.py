"""A stack of linear layers with ReLU between them.

In: the width that goes in and the width of each layer. Out: an nn.Sequential. The last layer has an activation only
when asked for, so that a stack can end in logits as well as in features.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def mlp(width_in: int, widths: Sequence[int], *, activate_last: bool) -> nn.Sequential:
    """Linear layers of the given widths; no layers pass their input on."""
    layers: list[nn.Module] = []
    for width_out in widths:
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
        width_in = width_out
    if layers and not activate_last:
        layers.pop()
    return nn.Sequential(*layers)


def checked_widths(option: str, widths: object) -> tuple[int, ...]:
    """The widths as a tuple, or a sentence naming the option that is wrong. They may come from a file."""
    if isinstance(widths, str) or not isinstance(widths, Sequence):
        raise ValueError(f"{option} is {widths!r}: give a list of layer widths such as [512, 256]")
    for width in widths:
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ValueError(f"{option} holds {width!r}: every layer width is a whole number of at least 1")
    return tuple(widths)
