"""A new consumer of dead letters begins where its creator says."""

import datetime as dt

import pytest

from tests.integration.api.world import ids, write
from tests.support import archive

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("emptied")]


def test_a_new_consumer_begins_at_a_time(served, acme, poller):
    """Regression: `since` was taken for a search criterion, so the request got 422, and no consumer was created."""
    write(served, 3)
    newest = ids(acme.get("/v1/dead-letters"))[-1]
    later = archive.NOW + dt.timedelta(minutes=1)
    with served.registry() as opened:
        opened.execute("update dead_letters set archived_at = %s where position = %s", (later, int(newest)))
    made = {name: acme.post("/v1/dead-letter-consumers", {"name": name, "since": since}) for name, since in (
        ("all", "2026-01-01T00:00:00Z"), ("newest", later.isoformat()), ("none", "2099-01-01T00:00:00Z"),
    )}  # fmt: skip
    assert [answer.status for answer in made.values()] == [201] * 3
    leased = {name: len(ids(poller.post(f"/v1/dead-letter-consumers/{name}/lease", {}))) for name in made}
    assert leased == {"all": 3, "newest": 1, "none": 0}
    refused = acme.post("/v1/dead-letter-consumers", {"name": "two", "since": later.isoformat(), "to": "end"})
    assert refused.fields == ["to", "since"]
