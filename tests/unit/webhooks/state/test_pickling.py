"""What a task brings of the registry is small, and is read once by each process."""

from types import SimpleNamespace

from delivery.webhooks.routing import registries
from delivery.webhooks.state import pickling
from tests.support import builders

BASE = builders.snapshot(*(builders.endpoint(f"ep{number}") for number in range(1000)))


def source(base_id="base"):
    return registries.BroadcastSource(base_id=base_id, broadcast=SimpleNamespace(value=pickling.packed(BASE)), delta=None)


def test_what_was_packed_is_the_same_when_it_is_unpacked():
    assert pickling.unpacked(pickling.packed(BASE)) == BASE


def test_a_process_unpacks_a_base_once_however_often_pyspark_loads_it(monkeypatch):
    unpacked = []
    monkeypatch.setattr(pickling, "unpacked", lambda written: unpacked.append(written) or BASE)
    last = None
    for base_id in ("one", "one", "one", "other"):
        last = source(base_id).registry(last)
    assert len(unpacked) == 2
