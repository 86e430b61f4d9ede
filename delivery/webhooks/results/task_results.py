"""The results of a lane's task, or of background attempts, as they are written to Kafka and counted. Runs in the executors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from delivery.model import Delivery, Outcome
from delivery.registry_model import AttemptedEndpoint, Endpoint, EndpointId
from delivery.webhooks.dispatching import dispatch
from delivery.webhooks.events.batch_records import BatchRecord
from delivery.webhooks.policy import error_classes
from delivery.webhooks.routing import intake
from delivery.webhooks.scheduling import background_attempts, outage_detection
from delivery.webhooks.sending import batch_payload
from delivery.webhooks.sending.batch_payload import BatchDelivery


@dataclass(slots=True, kw_only=True)
class Results:
    """The results of some records of a task, or of background attempts.

    A task makes several Results. In the direct and batch lanes, the last Results also has the task's totals: the fields that
    `final_results` sets. In the real-time lane, the last Results of each slice has the totals of the slice. In the retry lane,
    `most_in_flight` and `gone` of each Results are of the time since the previous Results.
    """

    outcomes: list[Outcome[Delivery]] = field(default_factory=list)
    batches: list[batch_payload.BatchOutcome] = field(default_factory=list)
    rejections: list[intake.Rejection] = field(default_factory=list)
    receipts: list[intake.Receipt] = field(default_factory=list)
    batch_records: list[BatchRecord] = field(default_factory=list)
    """Batch records whose events the task writes as records of their own, before it ends."""
    most_in_flight: int = 0
    """Most requests in flight at the same time from this lane of this worker."""
    reach: outage_detection.Reachability = outage_detection.NOTHING_ASKED
    """Destinations of the requests, and which of them responded."""
    gone: frozenset[AttemptedEndpoint] = frozenset()
    """Endpoints that responded with 410 Gone."""
    unresponsive: frozenset[EndpointId] = frozenset()
    """Endpoints that sent this worker no response for `Limits.response_deadline_s`. Each such silence is reported once."""
    late: frozenset[EndpointId] = frozenset()
    """Endpoints for whose response a task of this worker waited in vain."""
    accepting: Sequence[Endpoint] = ()
    """Endpoints that accepted a request, to be reported to the retry lane (`retries.health_hints`)."""
    failed: Collection[EndpointId] = ()
    """Endpoints that did not accept a request: their next acceptance is reported at once (`retries.health_hints`)."""
    waited_for_hosts: int = 0
    """Waits of this worker's requests for the limits of their host, since the worker's last report."""
    clock_ahead_s: float = 0.0
    """Seconds by which this worker's clock is ahead of the driver's; negative: behind (`clocks.driver_clock`)."""
    own_delay_s: float = 0.0
    """Seconds in which this worker waited for its own machine, since the worker's last report (`scheduling.endpoint_clock`)."""
    reused_ids: int = 0
    """Due events with the source and id of an earlier event and another payload, as far as this worker noticed. Rejected
    events do not count (`routing.seen_ids`)."""
    invalid_times: int = 0
    """Events whose time was no RFC 3339 time, and was replaced (`source.invalid_time`)."""
    paused: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """The partitions that the task has paused, by topic and number. For each, the offset of the first record that waits for its
    schema (`routing.intake`)."""


def final_results(dispatcher: dispatch.Dispatcher[Any], **fields: Any) -> Results:
    """Return the last results of a task, or of a slice of the real-time lane: `fields`, and the dispatcher's totals."""
    report = dispatcher.report()
    return Results(
        most_in_flight=report.most_in_flight,
        reach=report.reachability,
        gone=report.gone,
        unresponsive=report.unresponsive,
        late=report.late,
        accepting=report.accepting,
        failed=report.failed,
        **fields,
    )


def background_results(ended: Iterable[background_attempts.BackgroundResult]) -> Results:
    """Return the results of completed background attempts, without the request bodies.

    `gone` has the endpoints whose last attempt got 410 Gone. All other totals keep their defaults.
    """
    results, gone = Results(), set()
    for _, outcome in ended:
        if isinstance(outcome.delivery, BatchDelivery):
            results.batches.append(batch_payload.batch_outcome(outcome))
        else:
            results.outcomes.append(outcome._replace(delivery=outcome.delivery._replace(body=b"")))
        if outcome.attempts[-1].error_class == error_classes.GONE:
            gone.add(outcome.delivery.endpoint.as_attempted())
    results.gone = frozenset(gone)
    return results
