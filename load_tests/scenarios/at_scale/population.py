"""Define the population of the scenarios at scale: `MissionPopulation`, with a hot tenant, short retry waits and spare rows.

Spare rows are endpoints and subscriptions to which no event is due. Only `churn.py` changes them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from load_tests.harness import behaviour, receiver, traffic
from load_tests.scenarios import mission

HOT_TENANT = 0
"""The tenant with most events by Zipf's law. All of its events are due to `traffic.HOT_ENDPOINT`."""
SPARE_TENANT = "spare"
"""A tenant without events. All spare subscriptions name it, so no delivery depends on them."""
SPARE_TYPE = traffic.EVENT_TYPES[0]
"""Event type of the spare subscriptions."""
RETRY = {"schedule_s": [1, 2, 5, *(10,) * 40], "timeout_s": 15}
"""Retry settings of the endpoints that fail or are slow. By default, the second retry would come after 5 minutes."""


@dataclass(frozen=True, kw_only=True)
class ZipfPopulation(mission.MissionPopulation):
    """A MissionPopulation with a hot tenant, slow or failing endpoints, and spare rows."""

    behaviour: behaviour.Behaviour = behaviour.HEALTHY
    """Behaviour of the endpoints while the receiver is disturbed."""
    spare: int = 0
    """Number of spare endpoints, each with a subscription."""

    def draw(self, rng: random.Random, types: Sequence[int], hot: float) -> traffic.Drawn:
        """Draw an event: its event type and its tenant, each by Zipf's law. `types` is ignored.

        The share `hot` of the events goes to HOT_TENANT instead of the tenant that was drawn.
        """
        drawn = super().draw(rng, types, 0.0)
        if hot and rng.random() < hot:
            return drawn._replace(tenant=HOT_TENANT, endpoint=self.endpoint_of(drawn.type_number, HOT_TENANT))
        return drawn

    def is_other(self, endpoint: int) -> bool:
        """Return True for an endpoint in direct mode that is never slow or failing, and not the hot endpoint."""
        return endpoint != traffic.HOT_ENDPOINT and not self.is_batch(endpoint) and self.behaviour.is_healthy(endpoint)

    def registry(self, url: str) -> dict[str, Any]:
        """Return the manifest, with the URL of every endpoint below `url`."""
        manifest = super().registry(url)
        for number, endpoint in enumerate(manifest["endpoints"]):
            if not self.behaviour.is_healthy(number):
                endpoint["retry"] = RETRY
        if self.spare:
            manifest["tenants"].append({"id": SPARE_TENANT, "sub_tenants": []})
            manifest["customers"].append({"id": SPARE_TENANT})
            manifest["endpoints"] += [self._spare_endpoint(number, url) for number in range(self.spare)]
            manifest["subscriptions"] += [spare_subscription(number, "active") for number in range(self.spare)]
        return manifest

    def _spare_endpoint(self, number: int, url: str) -> dict[str, Any]:
        return {
            "id": spare_id(number),
            "customer": SPARE_TENANT,
            "url": f"{url}/ep{self.endpoints + number}",
            "signing_secrets": [receiver.SECRET],
        }


def spare_id(number: int) -> str:
    """Return the id of a spare endpoint and of its subscription."""
    return f"spare{number}"


def spare_subscription(number: int, status: str) -> dict[str, Any]:
    """Return the row of a spare subscription in the manifest, with this status."""
    return {
        "id": spare_id(number),
        "endpoint": spare_id(number),
        "event_type": SPARE_TYPE,
        "tenants": [SPARE_TENANT],
        "status": status,
    }
