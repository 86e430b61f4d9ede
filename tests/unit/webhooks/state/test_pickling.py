"""A pickled registry is unpickled unchanged, and once in each process."""

from types import SimpleNamespace

from delivery.webhooks.routing import registries
from delivery.webhooks.state import pickling
from tests.support import builders

BASE = builders.snapshot(*(builders.endpoint(f"ep{number}") for number in range(1000)))


def source(base_id="base"):
    return registries.BroadcastSource(base_id=base_id, broadcast=SimpleNamespace(value=pickling.packed(BASE)), delta=None)


def test_a_packed_value_is_unpacked_unchanged():
    assert pickling.unpacked(pickling.packed(BASE)) == BASE


def test_a_process_unpickles_a_base_once(monkeypatch):
    unpacked = []
    monkeypatch.setattr(pickling, "unpacked", lambda written: unpacked.append(written) or BASE)
    last = None
    for base_id in ("one", "one", "one", "other"):
        last = source(base_id).registry(last)
    assert len(unpacked) == 2
