"""Define what a task of the direct, batch or real-time lane knows of unhealthy endpoints, by the reports of all workers.

The driver makes this value (delivery.stages.lanes.unhealthy_endpoints).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from delivery.registry_model import EndpointId


class Unhealthy(NamedTuple):
    """The endpoints that are unhealthy, or were, by the reports of all workers."""

    suppressed: Mapping[EndpointId, str]
    """Endpoints to which a task sends nothing. Each has the reason, a word of `policy.retry_reasons`."""
    late: Mapping[EndpointId, float]
    """Endpoints that were late to respond to some worker. Each has the time of the last report, in seconds, by the monotonic
    clock of the driver. A task sends to them, but hardly waits for them (`dispatching.endpoint_memory`)."""
    watched: frozenset[EndpointId] | None = None
    """Endpoints that have accepted no request since their last failure, as far as the retry lane knows. A task reports
    acceptances only by these endpoints, and by endpoints that failed in its worker (`retries.health_hints`). None: the driver
    does not know these endpoints, so a task reports the acceptances of all."""


NONE_UNHEALTHY = Unhealthy({}, {})  # never changed
