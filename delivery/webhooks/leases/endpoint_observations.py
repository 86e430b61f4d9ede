"""Collect what the attempts of leases show about endpoints and about our own network. Pure."""

from __future__ import annotations

from delivery.model import Attempt
from delivery.registry_model import AttemptedEndpoint, Endpoint, EndpointId
from delivery.webhooks.policy import error_classes
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.scheduling import outage_detection


class EndpointObservations:
    """Collect the endpoints that are gone (410), that failed, and that responded or were unreachable.

    Each method `drain_…` returns and forgets what was collected since its last call.
    """

    def __init__(self) -> None:
        self._gone: set[AttemptedEndpoint] = set()
        self._failed: set[EndpointId] = set()
        self._responded: dict[EndpointId, tuple[Endpoint, bool]] = {}
        """By endpoint id: the endpoint, and whether it responded (True) or was unreachable (False)."""

    @property
    def has_gone(self) -> bool:
        """Return True if `drain_gone` has something to return."""
        return bool(self._gone)

    def record(
        self, lease: retry_messages.Lease, entry: retry_messages.RetryEntry, endpoint: Endpoint, attempt: Attempt
    ) -> None:
        """Record what the attempt of a retry entry shows about its endpoint.

        1. The endpoint responded with an HTTP status: until the next `drain_reachability` it counts as reachable, whatever
           failed before or fails later. After 410 Gone it is also gone.
        2. The attempt failed with one of `outage_detection.UNREACHABLE_CLASSES`: the endpoint has become unreachable. A probe
           does not count, nor an entry that waited because of such a failure: their endpoint was unreachable before. If they
           counted, ten dead endpoints could look like an outage of our own network, and all lanes would pause.
        3. Any other attempt shows nothing.
        """
        endpoint_id, error_class = endpoint.endpoint_id, attempt.error_class
        if error_class is not None:
            self._failed.add(endpoint_id)
        if error_class == error_classes.GONE:
            self._gone.add(endpoint.as_attempted())
        if error_class is None or attempt.status is not None:
            self._responded[endpoint_id] = endpoint, True
        elif (
            error_class in outage_detection.UNREACHABLE_CLASSES
            and not lease.is_probe
            and entry.reason not in outage_detection.UNREACHABLE_CLASSES
        ):
            self._responded.setdefault(endpoint_id, (endpoint, False))

    def drain_gone(self) -> frozenset[AttemptedEndpoint]:
        """Return the endpoints that responded with 410 Gone since the last call."""
        gone, self._gone = frozenset(self._gone), set()
        return gone

    def drain_failed(self) -> frozenset[EndpointId]:
        """Return the endpoints that did not accept an attempt since the last call."""
        failed, self._failed = frozenset(self._failed), set()
        return failed

    def drain_reachability(self) -> outage_detection.Reachability:
        """Return the destinations that responded or were unreachable since the last call."""
        reachability = outage_detection.reachability(self._responded.values())
        self._responded = {}
        return reachability
