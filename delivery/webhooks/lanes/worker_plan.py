"""The settings that the driver gives to each worker process. Made on the driver, read in the executors."""

from __future__ import annotations

from dataclasses import dataclass, field

from delivery.webhooks.events import parsing
from delivery.webhooks.formats import decoder
from delivery.webhooks.http import exchange_deadlines, guard
from delivery.webhooks.policy import backoff, response_body, retry_after
from delivery.webhooks.results import topic_rows
from delivery.webhooks.scheduling import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings by which a worker process parses and delivers. Only `formats` holds a secret, a password; no repr shows it."""

    topics: topic_rows.Topics
    guard: guard.Guard = field(default_factory=guard.Guard)
    layout: parsing.Layout = field(default_factory=parsing.Layout)
    formats: decoder.Formats | None = None
    """Settings for decoding values of records by a schema registry. None: no schema registry is set."""
    limits: limits.Limits = field(default_factory=limits.Limits)
    quick_retry: backoff.QuickRetry = field(default_factory=backoff.QuickRetry)
    attempt_timeout_s: float = 2.0
    """Seconds for an attempt in the direct, the batch or the real-time lane, and for a request for an access token."""
    max_extension_s: float = exchange_deadlines.MAX_EXTENSION_S
    """Most seconds that waits of the worker for its own machine add to `attempt_timeout_s`."""
    max_retry_after_s: float = retry_after.MAX_RETRY_AFTER_S
    logged_response_bytes: int = response_body.MAX_BYTES
    """Most bytes of the body of a response that the attempts topic keeps. 0: none."""
    logs_accepted: bool = False
    """True: the attempts topic keeps the responses to accepted attempts too."""
    max_connections: int = 0
    """Most open connections of one worker. 0: half of the files that the process may open, at most 16,384."""
    report_accepting_every_s: float = 0.0
    """Longest time in seconds between two reports to the retry lane that an endpoint accepts requests. 0: each task reports."""
    registry_max_age_s: float = 3600.0
    """Maximum age, in seconds, of a change that the registry of a task may lack."""
