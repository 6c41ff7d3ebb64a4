"""The registry of orders: every list, table, plot and sentence that names orders asks here.

An order of this package stands in one file beside this one and in one line of BUILT_IN, whose order is that of all
lists. An installed package adds one by an entry point of the group `foresee.orders` whose object is an `Order`.
"""

from __future__ import annotations

from foresee.errors import ConfigError
from foresee.graph.orders import baselines, beta, nodes, order, ring
from foresee.graph.orders.order import Order, Setting
from foresee.graph.orders.traversal import Traversal, states_of_nodes
from foresee.registry import Registry

BUILT_IN = (
    order.RANDOM,
    baselines.ROW_MAJOR,
    baselines.HILBERT,
    baselines.HILBERT_SYMMETRIC,
    baselines.INSIDE_OUT,
    beta.BETA,
    beta.BETA_DEFERRED,
    beta.COMET,
    ring.RING,
    nodes.SEQUENTIAL,
    nodes.DISPERSED,
)
DEFAULT = ring.RING


def _check_order(name: str, thing: object) -> None:
    if not isinstance(thing, Order):
        raise ConfigError(f"{thing!r} is no order; give a foresee.graph.orders.Order")
    if thing.name != name:
        raise ConfigError(f"the order {thing.name!r} is declared as {name!r}; give both the same name")


ORDERS: Registry[Order] = Registry("order", "foresee.orders", _check_order)
"""All there are, by name."""
for _order in BUILT_IN:
    ORDERS.add(_order.name, _order)

__all__ = ["BUILT_IN", "DEFAULT", "ORDERS", "Order", "Setting", "Traversal", "states_of_nodes"]
