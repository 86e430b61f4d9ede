"""The reasons, other than error classes, for which a delivery waits in the retry lane or becomes a dead letter.

A closed set: topics, metrics and the API have these words, and two more: `unforeseen` (`routing.intake`) and
`rejected_by_endpoint` (`sending.batch_payload`).
"""

from __future__ import annotations

LANE_DEADLINE = "lane_deadline"
"""The queue timeout (`delivery.lane_deadline_s`) ended while the delivery waited for its own endpoint, or before the delivery
began to wait."""
UNDER_WAY = "under_way"
"""The response to the attempt was overdue, and the lane had nothing else to send. The attempt continues in the background. The
delivery waits in the retry lane for the result of this attempt."""
SLOW = "slow"
"""The endpoint sent no response to other requests before their response deadline, or background attempts use up its limit of
requests in flight. So the lane deferred the delivery without attempting it."""
RATE_LIMITED = "rate_limited"
"""The endpoint's own limit of requests a second (`max_per_second`), or a limit of its host, delayed the delivery too long."""
CIRCUIT_OPEN = "circuit_open"
"""The endpoint was failing: its circuit breaker in the worker was open, or the retry lane had it suppressed in all workers."""
ENDPOINT_PAUSED = "endpoint_paused"
"""The endpoint is paused. The delivery waits until the endpoint is resumed."""
ENDPOINT_DISABLED = "endpoint_disabled"
"""The endpoint is disabled. The delivery waits until the endpoint is enabled."""
ENDPOINT_QUARANTINED = "endpoint_quarantined"
"""The endpoint's row is unusable, for example without a secret. The delivery waits until the row is repaired."""
ORDERED = "ordered"
"""The endpoint takes events in order. All its events go through the state of the retry lane."""
REDRIVEN = "redriven"
"""The delivery was a dead letter, and a redrive asked for it."""
REPLAYED = "replayed"
"""A replay asked for the delivery, whatever its outcome was."""
REGISTRY_BEHIND = "registry_behind"
"""The worker's registry is older than the registry by which the delivery was due, and lacks the delivery's endpoint,
subscription or tenant."""
NO_ROOM = "no_room"
"""The retry lane gave the delivery up, because more than `retry.max_pending` events would have waited for the endpoint;
half as many, if the delivery was redriven."""
EXPIRED = "expired"
"""The retry lane gave the delivery up, because the delivery's wait had reached the endpoint's `max_age_s`."""
CONFIGURATION = "configuration"
"""The endpoint's own settings make no valid request: its URL, a header, its authentication, its TLS or its signing keys."""
