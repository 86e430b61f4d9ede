"""Write records to Kafka byte by byte, as a client may do that checks less than the usual clients.

Source: "Kafka protocol guide" (Produce, version 3) and "Record Batch" in Kafka's documentation; RFC 3720, B.4 (CRC-32C).
"""

import socket
import struct
import time


def produce(address, topic, value, headers):
    """Write a record to partition 0 of a topic, with any bytes as names of its headers. Fail if the broker refuses it."""
    host, port = address.split(":")
    now_ms = int(time.time() * 1000)
    body = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1) + _record(value, headers)
    batch = struct.pack(">qiibI", 0, 9 + len(body), 0, 2, _crc32c(body)) + body
    request = b"".join(
        [
            struct.pack(">hhi", 0, 3, 1) + _text("raw"),  # Produce, version 3
            struct.pack(">hhii", -1, -1, 10_000, 1) + _text(topic),  # no transaction, all replicas, 10 s, one topic
            struct.pack(">iii", 1, 0, len(batch)) + batch,  # one partition
        ]
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        [length] = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        answer = connection.recv(length, socket.MSG_WAITALL)
    # Behind the request's number: one topic with its name, and one partition with its number and the error.
    [error] = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
    assert error == 0


def _crc32c(content):
    rest = 0xFFFFFFFF
    for byte in content:
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ (0x82F63B78 if rest & 1 else 0)
    return rest ^ 0xFFFFFFFF


def _record(value, headers):
    content = b"\0" + _varint(0) + _varint(0) + _varint(-1) + _sized(value) + _varint(len(headers))
    return _sized(content + b"".join(_sized(name) + _sized(held) for name, held in headers))


def _text(text):
    return struct.pack(">h", len(text)) + text.encode()


def _sized(content):
    return _varint(len(content)) + content


def _varint(number):
    rest, out = number << 1 if number >= 0 else -number * 2 - 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])
