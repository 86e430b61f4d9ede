"""Measure what the kept body of a failed response costs a worker's event loop: CPU µs per body, the best of several rounds.

Run: `python -m tests.benchmarks.response_bodies`. The bounds are 15 µs for an ordinary error page of 1 KiB, and 100 µs for a
body that a hostile receiver makes. The benchmark also prints the bytes that the response of an accepted attempt would add to
its entry in the attempts topic. Entries of accepted attempts have no response, for this reason.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from delivery.webhooks.policy import response_body
from delivery.webhooks.results import log_entries
from tests.support import records

ROUNDS, BODIES = 15, 400
ORDINARY_US, HOSTILE_US = 15.0, 100.0
_BYTES = 2048
TEXT = (b"Internal error while the order was saved: the database did not answer in time, code 40001. " * 30)[:_BYTES]
HTML = (
    b'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>503 Service Unavailable</title>\n<style>\n'
    b"body { font-family: sans-serif; margin: 2em; }\n</style>\n</head>\n<body>\n<h1>Service Unavailable</h1>\n"
    + b'<p class="line">The server is down for maintenance &amp; comes back soon. See the status page.</p>\n' * 8
    + b'<p><a href="https://status.example.com/incidents/17">status page</a></p>\n</body>\n</html>\n'
)
JSON = (
    b'{"type":"https://errors.example.com/invalid","title":"Unprocessable","status":422,"detail":"amount is missing","errors":['
    + b",".join(b'{"field":"data.items[%d].amount","message":"must be a number","code":"type_error"}' % n for n in range(12))
    + b"]}"
)
WITH_WORDS = (
    b'{"error":"invalid_token","error_description":"the access token expired","session":null,"request":{"method":"POST",'
    b'"headers":{"host":"h","authorization":"Bearer abc.def","x-api-key":"abcd","user-agent":"fanout-webhooks/1"}},"trace":['
    + b",".join(b'{"file":"/srv/app/handlers/order_%d.py","line":%d,"name":"handle"}' % (n, n) for n in range(12))
    + b"]}"
)
BEARER = ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.abc/def+ghi="]
MANY_HEADERS = [f"{number:03x}/" * 1024 for number in range(32)]
ORDINARY = {
    "plain text": (TEXT, []),
    "HTML page with a link": (HTML, []),
    "problem+json with a link": (JSON, []),
    "JSON with an echo of the request": (WITH_WORDS, BEARER),
    "HTML page, bearer token": (HTML, BEARER),
    "HTML page with an escape, bearer": (HTML.replace(b"</h1>", b" &#39;</h1>"), BEARER),
}
HOSTILE_PARTS = (
    "key ", "key=", "key,", 'key"', 'key":"', 'key","', "key <", "key >a</", 'key\\"', "key:[", "key:['", "key:['a',",
    "key=1,value=2 ", "key:&quot;", "&quot;key", "token:bearer ", "token digest basic ", "keytokensecretsession", "bearer ",
    "basic a ", "://", "://@", "://a@b ", "eyj", "eyjaaaaaaaa.", "v1,", "fk_", "fk_a ", "cookie:", 'cookie="', "authorization",
    # The two worst of 10,000 random ones.
    r"""\"\"\"@name="a \atokensecret=>"valuekeyauthorization=>'\" é \"\"\"\"cookie=>\'""",
    'digest valuewhsec_awhsec_tokenname="aésecreta',
    "\0", "\xff", "\U0001f600", "\\u002b", "&#43;", "&#43;key", "&#43;\\u002b",
)  # fmt: skip


def bodies() -> Iterator[tuple[str, bytes, list[str], float]]:
    """Yield each body with its name, the secrets of its endpoint, and the bound in µs."""
    for name, (body, secrets) in ORDINARY.items():
        yield name, body[:_BYTES], secrets, ORDINARY_US
    for part in HOSTILE_PARTS:
        yield ascii(part), (part * _BYTES).encode()[:_BYTES], BEARER, HOSTILE_US
    yield "hostile, a header of 4 KiB", b"key=" * 512, MANY_HEADERS[:1], HOSTILE_US
    yield "a header of 4 KiB, repeated", MANY_HEADERS[0].encode(), MANY_HEADERS[:1], HOSTILE_US
    yield "32 headers of 4 KiB", HTML, MANY_HEADERS, HOSTILE_US
    yield "a header of equal characters", b"a" * _BYTES, ["a" * 4096], HOSTILE_US


def cpu_us(body: bytes, secrets: list[str]) -> float:
    """Return the CPU time of one body in µs."""
    spent = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(BODIES):
            response_body.kept(body, (), secrets, response_body.MAX_BYTES)
        spent.append(time.process_time() - began)
    return min(spent) / BODIES * 1e6


def entry_bytes(*, with_response: bool) -> tuple[float, float]:
    """Return the bytes of an accepted attempt's entry as JSON, and compressed by lz4 as in Kafka, the mean of 500 entries."""
    made = []
    for number in range(500):
        headers = {
            "content-type": "application/json; charset=utf-8",
            "content-length": "15",
            "date": "Thu, 26 Nov 2026 08:00:00 GMT",
            "server": "nginx",
            "x-request-id": str(uuid.uuid4()),
        }
        response = {"response_headers": headers, "response": '{"status":"ok"}'} if with_response else {}
        entry = records.entry(
            log_entries.AttemptEntry,
            webhook_id=f"msg_{uuid.uuid4().hex}",
            event_id=str(uuid.uuid4()),
            offset=number,
            started_at_ms=1_780_000_000_000 + number * 7,
            duration_ms=30 + number / 10,
            status=200,
            error_class=None,
            **response,
        )
        made.append(msgspec.json.encode(entry))
    whole = b"\n".join(made)
    return len(whole) / len(made), len(pa.Codec("lz4").compress(whole)) / len(made)


def main() -> None:
    """Measure and print; exit with 1 if a body takes longer than its bound."""
    for with_response in (False, True):
        plain, compressed = entry_bytes(with_response=with_response)
        print(f"accepted attempt, with response {with_response}: {plain:.0f} bytes, {compressed:.0f} compressed")
    exceeded = False
    for name, body, secrets, bound_us in bodies():
        taken_us = cpu_us(body, secrets)
        exceeded |= taken_us > bound_us
        print(f"{name:36} {taken_us:7.1f} µs{'   above the bound' if taken_us > bound_us else ''}")
    raise SystemExit(exceeded)


if __name__ == "__main__":
    main()
