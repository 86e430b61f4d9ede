"""The bytes of publishing requests are bounded together, before a body is read."""

import contextlib
from types import SimpleNamespace

import pytest

from delivery.config import settings
from subscriptions_db.api.contract import problems
from subscriptions_db.api.server import publishing


@pytest.fixture
def publisher(monkeypatch):
    monkeypatch.setattr(publishing, "MAX_BYTES", 10_000)
    config = settings.Settings.model_validate({"api": {"max_body_bytes": 6000}})
    made = publishing.Publishing(config, None)
    yield made
    made.close()


def request(size, **headers):
    return SimpleNamespace(content_length=size, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(
    ("size", "headers", "taken"),
    [(5000, {}, 5000), (None, {}, 6000), (10, {"content_encoding": "gzip"}, 6000), (2**40, {}, 6000)],
)
def test_publishing_requests_share_a_bounded_number_of_bytes(publisher, size, headers, taken):
    with contextlib.ExitStack() as stack:
        stack.enter_context(publisher._room(request(size, **headers)))
        stack.enter_context(publisher._room(request(10_000 - taken)))
        with pytest.raises(problems.Refused) as refused, publisher._room(request(1)):
            pytest.fail("it has no room")
        assert refused.value.problem.status == 503
        assert refused.value.headers == {"retry-after": "2"}
    with publisher._room(request(5000)):
        pass
