"""During an update, a row that only the newer version understands is quarantined, and all others are read."""

import pytest

from delivery.config import settings
from delivery.registry_model import EndpointId, SubscriptionId, SubscriptionStatus
from delivery.webhooks.http import guard
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import builder

RING = keyring.KeyRing.from_settings(settings.KeysSettings(ring={"k1": keyring.generate()}, active="k1"))
ENDPOINT = {
    "endpoint_id": "ep1",
    "customer_id": "c1",
    "url": "https://a.example.com/",
    "status": "active",
    "awaits_permission": False,
    "mode": "direct",
    "payload": "json",
    "content_mode": "standard",
    "auth_kind": "none",
    "retry_schedule_s": None,
    "retry_max_age_s": None,
    "retry_timeout_s": None,
    "order_by": None,
}
SUBSCRIPTION = {"endpoint_id": "ep1", "event_type": "*", "scope": "everything", "pattern": None, "status": "active"}


@pytest.mark.parametrize("column", ["status", "mode", "payload", "content_mode", "auth_kind"])
def test_an_endpoint_with_a_word_of_a_newer_version_is_quarantined(column):
    """Regression: the whole registry was unreadable, and the job paused when its copy was too old."""
    [(found, endpoint)] = builder.endpoints([ENDPOINT | {column: "novel"}], [], RING, guard.Guard())
    assert (found, endpoint.url) == (EndpointId("ep1"), "https://a.example.com/")
    assert endpoint.fault == f"{column} is novel, which only a newer version of the platform knows: update this process"


def test_a_subscription_with_a_status_of_a_newer_version_is_quarantined():
    rows = [SUBSCRIPTION | {"subscription_id": "s1", "status": "novel"}, SUBSCRIPTION | {"subscription_id": "s2"}]
    found = dict(builder.subscriptions(rows, []))
    novel, known = found[SubscriptionId("s1")], found[SubscriptionId("s2")]
    assert novel.fault == "status is novel, which only a newer version of the platform knows: update this process"
    assert (known.fault, known.status) == (None, SubscriptionStatus.ACTIVE)
