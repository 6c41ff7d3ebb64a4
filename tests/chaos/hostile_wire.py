"""Bytes for a server's raw socket: HTTP/2 frames, gRPC messages and Flight's protobuf, right or wrong on purpose.

In: what a well-behaved client would send. Out: the same as bytes, whose lengths, flags and numbers a test may choose
freely. Nothing here understands an answer beyond telling whether the server closed the connection.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4
SERVICE = "/arrow.flight.protocol.FlightService"


def frame(kind: int, flags: int, stream: int, payload: bytes, *, length: int | None = None) -> bytes:
    """One HTTP/2 frame; `length` is what it claims to hold."""
    claimed = len(payload) if length is None else length
    return struct.pack(">I", claimed)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(method: str, token: str | None = None, **more: str) -> bytes:
    """The headers of a call, as HPACK literals that nobody indexes."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": f"{SERVICE}/{method}", ":authority": "127.0.0.1",
        "content-type": "application/grpc", "te": "trailers", **more,
    }  # fmt: skip
    if token is not None:
        fields["authorization"] = f"Bearer {token}"
    return b"".join(b"\x10" + _text(name) + _text(value) for name, value in fields.items())


def message(payload: bytes, *, length: int | None = None, compressed: int = 0) -> bytes:
    """A gRPC message; `length` is what it claims to hold."""
    return struct.pack(">BI", compressed, len(payload) if length is None else length) + payload


def field(number: int, payload: bytes, *, length: int | None = None) -> bytes:
    """A protobuf field of bytes."""
    return _varint(number << 3 | 2) + _varint(len(payload) if length is None else length) + payload


def action(kind: str, content: bytes) -> bytes:
    return field(1, kind.encode()) + field(2, content)


def descriptor(command: bytes) -> bytes:
    return b"\x08\x02" + field(2, command)


def flight_data(
    *, command: bytes | None = None, header: bytes = b"", metadata: bytes = b"", body: bytes = b""
) -> bytes:
    parts = [] if command is None else [field(1, descriptor(command))]
    parts += [field(number, part) for number, part in ((2, header), (3, metadata), (1000, body)) if part]
    return b"".join(parts)


def call(method: str, payload: bytes, *, stream: int = 1, token: str | None = None, end: bool = True) -> bytes:
    """Everything of a call with one message."""
    return (
        PREFACE
        + frame(SETTINGS, 0, 0, b"")
        + frame(HEADERS, END_HEADERS, stream, header_block(method, token))
        + frame(DATA, END_STREAM if end else 0, stream, message(payload))
    )


def as_json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def connect(address: str, *, timeout_seconds: float = 10.0) -> socket.socket:
    host, _, port = address.partition("://")[2].rpartition(":")
    return socket.create_connection((host, int(port)), timeout_seconds)


def send(connection: socket.socket, content: bytes) -> bool:
    """False if the server has closed the connection meanwhile."""
    try:
        connection.sendall(content)
    except (BrokenPipeError, ConnectionResetError, TimeoutError):
        return False
    return True


def is_cut(connection: socket.socket, within_seconds: float) -> bool:
    """Whether the server closes the connection in time; what it says before is read and forgotten."""
    deadline = time.monotonic() + within_seconds
    while (remaining := deadline - time.monotonic()) > 0:
        connection.settimeout(remaining)
        try:
            if not connection.recv(1 << 16):
                return True
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
    return False


def _text(value: str) -> bytes:
    content = value.encode()
    if len(content) < 127:
        return bytes([len(content)]) + content
    return b"\x7f" + _varint(len(content) - 127) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
