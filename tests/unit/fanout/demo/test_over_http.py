"""The demo polls as a customer would until all dead letters have come, and compares each with the published payload."""

import base64
from dataclasses import dataclass, field

import pytest

from delivery import errors
from delivery.webhooks.results.log_entries import Due
from fanout.demo import over_http, scenario

PUBLISHED = {("orders", 0, offset): b'{ "n": %d }' % offset for offset in range(4)}


def due(offset):
    return Due("orders", 0, offset, "all")


def item(offset, *, payload=None):
    return {
        "id": str(offset),
        "receipt": f"receipt-{offset}",
        "payload_base64": base64.b64encode(payload or PUBLISHED["orders", 0, offset]).decode(),
        "record": due(offset)._asdict(),
    }


@dataclass
class FakeApi:
    """Answers each poll with the next of `pages`, then with nothing."""

    pages: list = field(default_factory=list)
    acknowledges: bool = True
    asked: list = field(default_factory=list)

    def post(self, path, document):
        self.asked.append((path.rsplit("/", 1)[1], document))
        match self.asked[-1][0]:
            case "lease":
                return {"items": self.pages.pop(0) if self.pages else [], "has_more": False}
            case "ack":
                return {"letters": [text.removeprefix("receipt-") for text in document["receipts"] if self.acknowledges]}
            case "redrive":
                return {"count": 1, "next_cursor": f"behind-{len(self.asked)}", "has_more": len(self.asked) < 3}
        return {}

    def patch(self, path, document):
        self.asked.append((path, document))


def poll(api, wanted, *, timeout_s=60):
    return over_http.poll(api, api, {due(n) for n in wanted}, PUBLISHED, before_poll=lambda: None, timeout_s=timeout_s)


def test_the_demo_polls_until_all_dead_letters_have_come():
    api = FakeApi([[item(0)], [], [item(1)], [item(1), item(2)]])
    polled = poll(api, range(2))
    assert polled.seen == polled.intact == polled.acknowledged == {due(0), due(1), due(2)}
    assert [asked["wait_s"] for path, asked in api.asked if path == "lease"] == [2, 2, 2, 0, 0]


def test_a_payload_that_differs_from_the_published_is_not_intact():
    polled = poll(FakeApi([[item(0), item(1, payload=b'{"n":1}')]]), range(2))
    assert (polled.seen, polled.intact) == ({due(0), due(1)}, {due(0)})


def test_only_letters_that_the_api_names_count_as_acknowledged():
    assert poll(FakeApi([[item(0)]], acknowledges=False), range(1)).acknowledged == set()


def test_dead_letters_that_never_come_are_an_error():
    with pytest.raises(errors.LocalStackError, match="no dead letter"):
        poll(FakeApi([[item(0)]]), range(2), timeout_s=-1)


def test_all_waiting_dead_letters_are_redriven_page_by_page():
    api = FakeApi()
    over_http.redrive(api)
    assert [asked.get("cursor") for _, asked in api.asked] == [None, "behind-1", "behind-2"]
    assert all(asked["everything"] for _, asked in api.asked)


def test_repaired_endpoints_get_time_for_all_redriven_deliveries():
    """Regression: 295 of 422 redriven deliveries expired after 10 s, while the retry lane sent 1, 2, 4, … a second."""
    api = FakeApi()
    over_http.retry_longer(api, ["a", "b"], scenario.REPAIRED_MAX_AGE_S)
    assert api.asked == [(f"/v1/endpoints/{name}", {"retry": {"max_age_s": 600}}) for name in ("a", "b")]
