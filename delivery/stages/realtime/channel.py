"""Exchange sealed messages between the driver and the workers of the real-time lane, over TCP.

Runs on the driver and in the executors' Python workers. Must not import the settings. Each message is sealed by AES-GCM with a
key that travels in the task's closure, which Spark encrypts. The driver starts with a random challenge. The challenge, the
direction and the message's number are authenticated as well, so a recorded message cannot be replayed.

An opened message is unpickled, as are the values of Spark's accumulators: only a process with the query's key can have sealed
it.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from delivery.webhooks.state import pickling

CONNECT_S = 10.0
"""Seconds that connecting, or one message, may take."""
MAX_REPORT_BYTES = 16 * 1024 * 1024
"""Bytes of a message to the driver. A client without the key cannot make the driver allocate more."""
MAX_UPDATE_BYTES = 2 * 1024 * 1024 * 1024 - 1
"""Bytes of a message to a worker, which may hold the whole registry."""
_CHALLENGE_BYTES = 16
_NONCE_BYTES = 12
_LENGTH = struct.Struct(">I")


class ChannelBroken(Exception):
    """The peer is gone, or it does not have the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The driver's address and the query's key. Survives pickling."""

    host: str
    port: int
    key: bytes = field(repr=False)


def new_key() -> bytes:
    """Return a key for one query."""
    return AESGCM.generate_key(256)


class Channel:
    """One connection. Each side sends and receives alternately, from one thread at a time."""

    def __init__(self, connection: socket.socket, key: bytes, challenge: bytes, *, is_driver: bool) -> None:
        self._connection = connection
        self._sealer = AESGCM(key)
        self._challenge = challenge
        self._sends, self._receives = (b"update", b"report") if is_driver else (b"report", b"update")
        self._most = MAX_REPORT_BYTES if is_driver else MAX_UPDATE_BYTES
        self._sent = self._received = 0

    def send(self, message: Any) -> None:
        """Send a message; raise ChannelBroken."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._sealer.encrypt(nonce, pickling.packed(message), self._bound_to(self._sends, self._sent))
        self._sent += 1
        try:
            self._connection.sendall(_LENGTH.pack(len(sealed)) + sealed)
        except OSError as exc:
            raise ChannelBroken(f"{exc}") from exc

    def receive(self) -> Any:
        """Wait for the next message and return it; raise ChannelBroken."""
        (length,) = _LENGTH.unpack(_read(self._connection, _LENGTH.size))
        if length > self._most:
            raise ChannelBroken(f"a message of {length} bytes")
        sealed = _read(self._connection, length)
        bound_to = self._bound_to(self._receives, self._received)
        self._received += 1
        try:
            return pickling.unpacked(self._sealer.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound_to))
        except InvalidTag:
            raise ChannelBroken("a message that was not sealed for here") from None

    def wait_without_timeout(self) -> None:
        """Remove the time limit of the next messages."""
        self._connection.settimeout(None)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _bound_to(self, direction: bytes, number: int) -> bytes:
        return b"%s %s %d" % (self._challenge, direction, number)


def connect(address: Address) -> Channel:
    """Return a channel to the driver; raise ChannelBroken. Called in a worker."""
    try:
        connection = socket.create_connection((address.host, address.port), timeout=CONNECT_S)
    except OSError as exc:
        raise ChannelBroken(f"the driver does not answer at {address.host}:{address.port}: {exc}") from exc
    _prepare(connection)
    return Channel(connection, address.key, _read(connection, _CHALLENGE_BYTES), is_driver=False)


def accepted(connection: socket.socket, key: bytes) -> Channel:
    """Return the driver's end of a connection that it has accepted; raise ChannelBroken."""
    _prepare(connection)
    challenge = os.urandom(_CHALLENGE_BYTES)
    try:
        connection.sendall(challenge)
    except OSError as exc:
        raise ChannelBroken(f"{exc}") from exc
    return Channel(connection, key, challenge, is_driver=True)


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(CONNECT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _read(connection: socket.socket, length: int) -> bytes:
    read = bytearray()
    while len(read) < length:
        try:
            some = connection.recv(min(length - len(read), 1024 * 1024))
        except OSError as exc:
            raise ChannelBroken(f"{exc}") from exc
        if not some:
            raise ChannelBroken("the other side is gone")
        read += some
    return bytes(read)
