"""The connections of a port as the kernel sees them: who is there, also when one goes as another comes."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

import pytest

from foresee.store.rpc import sockets
from foresee.store.rpc.sockets import PortSockets, peer_name

pytestmark = pytest.mark.skipif(not os.path.isdir(sockets.DESCRIPTORS), reason="there is no /proc here")


def connect(stack: ExitStack, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = stack.enter_context(socket.create_connection(listener.getsockname()))
    return client, stack.enter_context(listener.accept()[0])


def name(client: socket.socket) -> str:
    return peer_name(*client.getsockname())


@pytest.mark.parametrize("kernel_counts", [True, False])
def test_who_is_there(kernel_counts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a kernel that does not say how many descriptors there are."""
    if not kernel_counts:
        monkeypatch.setattr(sockets, "_num_descriptors", lambda: len(os.listdir(sockets.DESCRIPTORS)))
    monkeypatch.setattr(sockets, "EXAMINE_SECONDS", 1e9)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = PortSockets(listener.getsockname()[1])
        stack.callback(port.close)
        assert port.look() == []
        first, first_end = connect(stack, listener)
        first.sendall(b"some")
        assert [it.peer for it in port.look()] == [name(first)]
        first_end.recv(4)
        assert [it.received_bytes for it in port.look()] == [4]
        # One goes and one comes between two looks: there are as many descriptors as before.
        first.close()
        first_end.close()
        second, _ = connect(stack, listener)
        assert [it.peer for it in port.look()] == [name(second)]
