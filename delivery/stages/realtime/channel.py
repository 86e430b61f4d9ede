"""Exchange sealed messages between the driver and the workers of the real-time lane, over TCP.

Runs on the driver and in the executors' Python workers. Must not import the settings. Each query has a secret key, which
travels in the task's closure; Spark encrypts closures. Each message is sealed by AES-GCM with this key. The driver starts a
connection with a random challenge. The challenge, the direction and the message's number are authenticated as well, so a
recorded message cannot be replayed.

An opened message is unpickled. That is safe, because only a process with the query's key can have sealed the message.
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
"""Seconds for connecting, for sending one message, and for each wait for further bytes of the peer."""
MAX_REPORT_BYTES = 16 * 1024 * 1024
"""Most bytes of a message to the driver. A client without the key cannot make the driver allocate more."""
MAX_UPDATE_BYTES = 2 * 1024 * 1024 * 1024 - 1
"""Most bytes of a message to a worker, which may hold the whole registry."""
_CHALLENGE_BYTES = 16
_NONCE_BYTES = 12
_LENGTH = struct.Struct(">I")


class ChannelBroken(Exception):
    """The connection cannot be used further.

    The peer is gone or too slow, its message is too short or too large, or the message was not sealed for this connection.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of the driver, and the secret key of the query's messages: a worker needs both. Survives pickling."""

    host: str
    port: int
    key: bytes = field(repr=False)


def new_key() -> bytes:
    """Return a random secret key for the messages of one query of the real-time lane."""
    return AESGCM.generate_key(256)


class Channel:
    """One end of a connection between the driver and a task. Each end sends and receives alternately, one thread at a time."""

    def __init__(self, connection: socket.socket, key: bytes, challenge: bytes, *, is_driver: bool) -> None:
        self._connection = connection
        self._sealer = AESGCM(key)
        self._challenge = challenge
        self._sends, self._receives = (b"update", b"report") if is_driver else (b"report", b"update")
        self._most = MAX_REPORT_BYTES if is_driver else MAX_UPDATE_BYTES
        self._sent = self._received = 0

    def send(self, message: Any) -> None:
        """Seal and send a message; raise ChannelBroken if the peer is gone.

        Unless `wait_without_timeout` was called before, also raise it if the peer does not take the message within CONNECT_S.
        """
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._sealer.encrypt(nonce, pickling.packed(message), self._bound_to(self._sends, self._sent))
        self._sent += 1
        try:
            self._connection.sendall(_LENGTH.pack(len(sealed)) + sealed)
        except OSError as exc:
            raise ChannelBroken(f"{exc}") from exc

    def receive(self) -> Any:
        """Wait for the peer's next message, and return it.

        Raise ChannelBroken if the peer is gone, if the message is too short or too large, or if it was not sealed for this
        connection. Unless `wait_without_timeout` was called before, also raise it if the peer sends nothing for CONNECT_S.
        """
        (length,) = _LENGTH.unpack(_read(self._connection, _LENGTH.size))
        if not _NONCE_BYTES < length <= self._most:
            raise ChannelBroken(
                f"the other side announced a message of {length} bytes; {_NONCE_BYTES + 1} to {self._most} are accepted"
            )
        sealed = _read(self._connection, length)
        bound_to = self._bound_to(self._receives, self._received)
        self._received += 1
        try:
            return pickling.unpacked(self._sealer.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound_to))
        except InvalidTag:
            raise ChannelBroken(
                "the other side sent a message that was not sealed for this connection, so the connection is closed"
            ) from None

    def wait_without_timeout(self) -> None:
        """Remove the time limit of all later sends and receives. Called by the driver's end when the task has to stop."""
        self._connection.settimeout(None)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _bound_to(self, direction: bytes, number: int) -> bytes:
        return b"%s %s %d" % (self._challenge, direction, number)


def connect(address: Address) -> Channel:
    """Return a task's end of a new connection. Raise ChannelBroken if the driver is gone or silent for CONNECT_S."""
    try:
        connection = socket.create_connection((address.host, address.port), timeout=CONNECT_S)
    except OSError as exc:
        raise ChannelBroken(
            f"a task of lane realtime cannot reach the driver at {address.host}:{address.port} ({exc}), so the "
            "task fails, and the lane restarts its query or ends. Check that the network policy lets executors reach this port "
            "of the driver (realtime.port)"
        ) from exc
    try:
        _prepare(connection, CONNECT_S)
        return Channel(connection, address.key, _read(connection, _CHALLENGE_BYTES), is_driver=False)
    except BaseException:
        connection.close()
        raise


def accepted(connection: socket.socket, key: bytes, *, connect_s: float = CONNECT_S) -> Channel:
    """Send the challenge on a connection that the driver has accepted, and return the driver's end.

    The driver's end waits `connect_s` where a task's end waits CONNECT_S. Raise ChannelBroken if the peer is gone.
    """
    _prepare(connection, connect_s)
    challenge = os.urandom(_CHALLENGE_BYTES)
    try:
        connection.sendall(challenge)
    except OSError as exc:
        raise ChannelBroken(f"{exc}") from exc
    return Channel(connection, key, challenge, is_driver=True)


def _prepare(connection: socket.socket, connect_s: float) -> None:
    connection.settimeout(connect_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _read(connection: socket.socket, length: int) -> bytes:
    read = bytearray()
    while len(read) < length:
        try:
            received = connection.recv(min(length - len(read), 1024 * 1024))
        except OSError as exc:
            raise ChannelBroken(f"{exc}") from exc
        if not received:
            raise ChannelBroken("the other side is gone")
        read += received
    return bytes(read)
