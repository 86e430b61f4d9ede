"""Make one attempt at a delivery or batch: sign it, post it, and return the result as data. A failed attempt raises nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from delivery import errors
from delivery.model import Attempt, Sendable
from delivery.registry_model import Endpoint, EndpointId
from delivery.webhooks.http import guard, origin, transport
from delivery.webhooks.policy import error_classes, response_body, response_headers, retry_after, retry_reasons
from delivery.webhooks.scheduling import endpoint_clock
from delivery.webhooks.sending import oauth, request, signing

log = logging.getLogger(__name__)

MAX_TARGETS = 20_000
"""Most endpoints whose prepared Target is kept in a process."""
MIN_REQUEST_SHARE = 0.25
"""Least share of an attempt's timeout that should be left for the request after the wait for an access token. If the wait left
less, and the request then times out, the attempt fails with TokenRefused instead of a timeout: the token server is to blame."""


class RequestTransport(Protocol):
    """Send a request and return its response. Implemented by delivery.webhooks.http.transport.Transport.

    `post` raises a subclass of AttemptFailed if no response comes.
    """

    async def post(self, to: origin.Target, headers: bytes, body: bytes, timeout_s: float) -> transport.Response: ...


class Sender:
    """Make attempts at deliveries and batches over one transport.

    `timeout_s` is the default timeout of an attempt, and the timeout of a request for an access token (OAuth). `clock` returns
    seconds since the epoch, and may jump. `monotonic` returns seconds, and measures durations. `endpoint_time` is the clock by
    which endpoints are judged, in seconds. A `Retry-After` above `max_retry_after_s` counts as `max_retry_after_s`. For the
    attempts topic, a failed attempt keeps headers of the response, and at most `logged_response_bytes` of its body. With
    `logs_accepted`, an accepted attempt keeps them too.
    """

    def __init__(
        self,
        network: RequestTransport,
        address_guard: guard.Guard,
        *,
        timeout_s: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,  # uvloop's time has whole milliseconds only
        endpoint_time: Callable[[], float] = endpoint_clock.loop_time,
        max_retry_after_s: float = retry_after.MAX_RETRY_AFTER_S,
        logged_response_bytes: int = response_body.MAX_BYTES,
        logs_accepted: bool = False,
    ) -> None:
        self._network = network
        self._guard = address_guard
        self._timeout_s = timeout_s
        self._clock = clock
        self._monotonic = monotonic
        self._endpoint_time = endpoint_time
        self._max_retry_after_s = max_retry_after_s
        self._logged_response_bytes = logged_response_bytes
        self._logs_accepted = logs_accepted
        self._targets: dict[EndpointId, origin.Target] = {}
        self._tokens = oauth.Tokens(network, timeout_s=timeout_s, monotonic=monotonic, endpoint_time=endpoint_time)

    async def attempt(self, delivery: Sendable, number: int, timeout_s: float | None = None) -> Attempt:
        """Make attempt `number` (from 1) within `timeout_s`, by default the timeout of the sender; return the result.

        A failure is returned as an Attempt too, not raised. Each attempt has its own timestamp, and therefore its own
        signature.
        """
        timeout_s = timeout_s or self._timeout_s
        started_at, began = self._clock(), self._monotonic()
        status: int | None = None
        retry_after_s: float | None = None
        response, detail = b"", ""
        kept: tuple[dict[str, str], str] | None = None
        error_class: str | None
        try:
            to = self._target(delivery.endpoint)
            headers = _headers(delivery, int(started_at))
            token = b""
            if to.grant is None:
                answer = await self._network.post(to, headers, delivery.body, timeout_s)
            else:
                answer, token = await self._post_with_token(to, to.grant, headers, delivery.body, timeout_s)
            status, response = answer.status, answer.body[: delivery.kept_response_bytes]
            error_class = error_classes.error_class_of(status)
            if error_class is not None:
                retry_after_s = retry_after.longest_retry_after_s(answer.headers, self._clock(), self._max_retry_after_s)
            if error_class is not None or self._logs_accepted:
                kept = response_headers.kept(answer.headers), self._kept_body(answer, delivery.endpoint, token)
        except errors.AttemptFailed as exc:
            error_class, detail = exc.error_class, str(exc)
        except errors.RegistrationError as exc:
            error_class, detail = retry_reasons.CONFIGURATION, str(exc)
        except Exception:
            # An unforeseen error at one endpoint must not affect other endpoints. If raised, it would fail the task, and with
            # it the micro-batch of all customers, again and again.
            log.exception(
                "an unforeseen error in one attempt: it counts as a failure of the platform, not of the endpoint. A lane "
                "retries the delivery as after other failures; a test event is not retried. Send this traceback to the "
                "maintainers of the platform",
                extra={"endpoint_id": delivery.endpoint.endpoint_id},
            )
            status, error_class, detail = None, errors.LocalFailure.error_class, error_classes.UNFORESEEN_DETAIL
            response = b""
        made = Attempt(
            number=number,
            started_at_ms=int(started_at * 1000),
            duration_ms=(self._monotonic() - began) * 1000,
            status=status,
            error_class=error_class,
            detail=detail,
            response=response,
            retry_after_s=retry_after_s,
        )
        return made if kept is None else response_headers.attach(made, *kept)

    async def _post_with_token(
        self, to: origin.Target, grant: origin.Grant, headers: bytes, body: bytes, timeout_s: float
    ) -> tuple[transport.Response, bytes]:
        """Post with an access token. After a 401, post once more with a newer token.

        The 401 is returned without a second request if the refused token is still the newest, no token request is in flight,
        and a renewal after a 401 began less than oauth.RETRY_PAUSE_S ago. Raise AttemptFailed, also if no newer token can be
        had. If a request times out, raise TokenRefused if the waits for tokens left it less than MIN_REQUEST_SHARE of
        `timeout_s`. `timeout_s` covers all requests. Return the last response, and the header line with the access token of
        that request.
        """
        began = self._endpoint_time()
        deadline = began + timeout_s

        async def post(token: bytes, waited_s: float) -> transport.Response:
            left_s = deadline - self._endpoint_time()
            try:
                return await self._network.post(to, headers + token, body, left_s)
            except errors.AttemptTimedOut:
                if left_s < timeout_s * MIN_REQUEST_SHARE <= left_s + waited_s:
                    raise errors.TokenRefused(
                        f"the token server took {waited_s:.1f} s of the attempt's {timeout_s:g} s, and the endpoint did not "
                        "answer in the rest, so the attempt failed: check why the token server is slow"
                    ) from None
                raise

        token = await self._tokens.header(grant, timeout_s)
        waited_s = self._endpoint_time() - began
        answer = await post(token, waited_s)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            began = self._endpoint_time()
            newer = await self._tokens.header_after_401(token, grant, deadline - began)
            if newer is not None:
                token = newer
                answer = await post(token, waited_s + self._endpoint_time() - began)
        return answer, token

    def _kept_body(self, answer: transport.Response, endpoint: Endpoint, token: bytes) -> str:
        secrets = [*request.secrets(endpoint), oauth.token_of(token)]
        return response_body.kept(answer.body, answer.headers, secrets, self._logged_response_bytes)

    def _target(self, endpoint: Endpoint) -> origin.Target:
        known = self._targets.get(endpoint.endpoint_id)
        # The snapshot keeps the same object until the row changes, so comparing identities is enough, and cheap.
        if known is None or known.endpoint is not endpoint:
            try:
                known = request.prepare(endpoint, self._guard)
            except OSError as exc:  # reading the client certificate takes file descriptors
                problem = f"the platform could not load the client certificate: {exc.strerror}. The endpoint is not at fault"
                raise errors.LocalFailure(problem) from exc
            if len(self._targets) >= MAX_TARGETS:
                del self._targets[next(iter(self._targets))]  # the oldest: tracking use would cost each attempt
            self._targets[endpoint.endpoint_id] = known
        return known


def _headers(delivery: Sendable, timestamp_s: int) -> bytes:
    signature = signing.sign(delivery.endpoint.signing_keys, delivery.webhook_id, timestamp_s, delivery.signed)
    own = f"webhook-id: {delivery.webhook_id}\r\nwebhook-timestamp: {timestamp_s}\r\nwebhook-signature: {signature}\r\n"
    return own.encode("ascii") + delivery.content_headers
