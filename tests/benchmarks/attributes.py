"""Measure what an event costs from its record to its body, by how many further CloudEvents attributes it has.

Run: `python -m tests.benchmarks.attributes --json FILE`. Single-threaded, no Spark. Each figure is the least of many rounds, in
CPU microseconds an event: the machine's other work only ever adds. It runs on versions without further attributes, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from delivery.model import Record
from delivery.registry_model import ContentMode
from delivery.webhooks.batching import segment
from delivery.webhooks.events import parsing
from delivery.webhooks.sending import payload
from tests.support import builders

EVENTS = 2_000
ROUNDS = 60
CORE = {
    "specversion": "1.0",
    "id": "3f1c9a52-7d0b-4d39-9d2a-8a7c1f0e5b11",
    "type": "order.created",
    "source": "/shops/berlin",
    "tenantid": "tenant-17",
    "subtenantid": "100",
    "time": "2026-05-01T10:00:00.123Z",
}
FURTHER = {
    "subject": "orders/4711",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "partitionkey": "customer-4711",
    "dataschema": "https://schemas.example.com/order/3",
}
DATA = orjson.dumps({"amount": 512, "currency": "EUR", "note": "x" * 280})


def binary(attributes: dict[str, str]) -> Record:
    """Return a record in binary mode."""
    headers = tuple((f"ce_{name}", value.encode()) for name, value in attributes.items())
    return builders.record(value=DATA, headers=(*headers, ("content-type", b"application/json")))


def structured(attributes: dict[str, str]) -> Record:
    """Return a record in structured mode."""
    value = orjson.dumps(attributes)[:-1] + b',"data":' + DATA + b"}"
    return builders.record(value=value, headers=(("content-type", b"application/cloudevents+json"),))


def plain() -> Record:
    """Return a record of plain JSON."""
    return builders.record(value=orjson.dumps({"id": CORE["id"], "tenant_id": "tenant-17", "time": CORE["time"], "d": 1}))


def least_us(work: Callable[[], Any]) -> float:
    """Return the CPU microseconds of one call."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        for _ in range(EVENTS):
            work()
        best = min(best, (time.process_time_ns() - began) / EVENTS / 1000)
    return round(best, 2)


def main() -> None:
    """Measure and print a row for each form; also as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    layout = parsing.Layout()
    records = {"plain": plain(), "binary": binary(CORE), "structured": structured(CORE)}
    if "attributes" in builders.event()._fields:
        records |= {"binary, 4 further": binary(CORE | FURTHER), "structured, 4 further": structured(CORE | FURTHER)}
    rows: dict[str, dict[str, float]] = {}
    for name, record in records.items():
        event = parsing.parse(record, layout)
        packed = segment.unpacked(segment.item(event, 0).packed)
        rows[name] = {
            "parse": least_us(lambda record=record: parsing.parse(record, layout)),
            **{mode.value: least_us(lambda event=event, mode=mode: payload.content(event, mode)) for mode in ContentMode},
            "pack": least_us(lambda event=event: segment.item(event, 0)),
            "batch, standard": least_us(lambda packed=packed: payload.standard(packed)),
        }
        print(f"{name:22}", rows[name])
    if arguments.json:
        arguments.json.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
