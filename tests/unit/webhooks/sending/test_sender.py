"""The sender signs each attempt anew, and returns its result as data."""

import asyncio
import errno

import pytest

from delivery import errors
from delivery.model import Outcome, OutcomeKind
from delivery.registry_model import Auth, AuthKind, SigningKey
from delivery.secret import Secret
from delivery.webhooks.http import guard, tls, transport
from delivery.webhooks.policy import response_headers
from delivery.webhooks.results import log_rows
from delivery.webhooks.sending import sender
from tests.support import builders, certificates, fakes


def attempt(*script, number=1, endpoint=None):
    transport = fakes.FakeTransport(*script)
    using = sender.Sender(transport, guard.Guard(), timeout_s=2.0, clock=fakes.Clock())
    delivery = builders.delivery(**({"endpoint": endpoint} if endpoint else {}))
    return asyncio.run(using.attempt(delivery, number)), transport, delivery


def test_an_accepted_attempt_has_a_status_and_no_error():
    made, transport, delivery = attempt(204)
    assert (made.status, made.error_class, made.number) == (204, None, 1)
    [(to, headers, body, timeout_s)] = transport.posted
    assert (to.endpoint, body, timeout_s) == (delivery.endpoint, delivery.body, 2.0)
    assert f"webhook-id: {delivery.webhook_id}\r\n".encode() in headers
    assert b"webhook-timestamp: 1700000000\r\n" in headers


@pytest.mark.parametrize(("status", "error_class"), [(302, "redirect"), (404, "refused"), (500, "server_error")])
def test_a_refusal_keeps_status_and_response(status, error_class):
    made, _, _ = attempt(status)
    assert (made.status, made.error_class, made.response) == (status, error_class, b"ok")


def test_a_jump_of_the_clock_does_not_change_a_duration():
    """Regression: when a worker corrected its estimate of the driver's time, an attempt of 1.2 s took -43,810 ms in the log."""
    epoch, passed = fakes.Clock(), fakes.Clock(0.0)

    class Slow(fakes.FakeTransport):
        async def post(self, *request):
            passed.now += 1.25
            epoch.now -= 45
            return await super().post(*request)

    using = sender.Sender(Slow(200), guard.Guard(), timeout_s=2.0, clock=epoch, monotonic=passed)
    made = asyncio.run(using.attempt(builders.delivery(), 1))
    assert (made.started_at_ms, made.duration_ms) == (1_700_000_000_000, 1250.0)


FAILURES = [
    errors.LocalFailure, errors.AddressBlocked, errors.DnsFailed, errors.ConnectFailed,
    errors.TlsFailed, errors.AttemptTimedOut, errors.ConnectionLost, errors.ResponseInvalid, errors.TokenRefused,
]  # fmt: skip


@pytest.mark.parametrize("failure", FAILURES)
def test_every_failure_to_get_a_response_becomes_its_class(failure):
    made, _, _ = attempt(failure("why"))
    assert (made.status, made.error_class, made.detail) == (None, failure.error_class, "why")


def test_all_failure_classes_are_covered():
    assert set(FAILURES) == set(errors.AttemptFailed.__subclasses__())


def test_an_unforeseen_error_affects_one_endpoint_only(caplog):
    made, _, _ = attempt(RuntimeError("from the depths"))
    assert (made.error_class, made.status) == ("local", None)
    assert "unforeseen" in caplog.text


def test_an_unforeseen_error_in_a_response_affects_one_endpoint_only(monkeypatch, caplog):
    monkeypatch.setattr(response_headers, "kept", lambda _: 1 / 0)
    made, _, _ = attempt(500)
    assert (made.error_class, made.status) == ("local", None)
    assert "unforeseen" in caplog.text


def test_an_invalid_endpoint_fails_by_configuration():
    made, transport, _ = attempt(200, endpoint=builders.endpoint(url="http://127.0.0.1/"))
    assert (made.error_class, transport.posted) == ("configuration", [])


def test_a_client_certificate_that_needs_more_files_fails_by_this_machine(monkeypatch, caplog):
    """Regression: the attempt counted as the customer's wrong configuration."""

    def full(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    for name in ("memfd_create", "pipe"):
        monkeypatch.setattr(tls.os, name, full)
    client = certificates.issue("of this test", issuer=certificates.authority())  # so that no context of it is cached
    made, transport, _ = attempt(200, endpoint=builders.endpoint(tls=client.client_tls()))
    assert (made.error_class, transport.posted) == ("local", [])
    assert (
        made.detail == "the platform could not load the client certificate: Too many open files. The endpoint is not at fault"
    )
    assert "unforeseen" not in caplog.text


@pytest.mark.parametrize("keys", [(), (SigningKey(secret=builders.KEY.secret, expires_at_s=fakes.Clock().now),)])
def test_nothing_is_sent_unsigned(keys):
    made, transport, _ = attempt(200, endpoint=builders.endpoint(signing_keys=keys))
    assert (made.error_class, transport.posted) == ("configuration", [])
    assert made.detail == "signing_keys: none is valid now, and no request is sent unsigned: rotate the endpoint's secret"


def test_a_changed_endpoint_gets_a_new_target():
    transport = fakes.FakeTransport(200)
    using = sender.Sender(transport, guard.Guard(), timeout_s=2.0, clock=fakes.Clock())
    for url in ("https://old.example.com/", "https://new.example.com/"):
        asyncio.run(using.attempt(builders.delivery(endpoint=builders.endpoint(url=url)), 1))
    assert [to.url.host for to, *_ in transport.posted] == ["old.example.com", "new.example.com"]


@pytest.mark.parametrize(
    ("status", "value", "wait_s"),
    [
        (429, "5", 5.0),
        (503, "Tue, 14 Nov 2023 22:13:50 GMT", 30.0),  # the clock is at 22:13:20
        (404, "7", 7.0),
        (503, "soon", None),
        (200, "5", None),
    ],
)
def test_a_failed_attempt_carries_retry_after(status, value, wait_s):
    made, _, _ = attempt(transport.Response(status=status, headers=[(b"Retry-After", value.encode())], body=b""))
    assert made.retry_after_s == wait_s


@pytest.mark.parametrize(("status", "kept"), [(503, {"server": "nginx"}), (404, {"server": "nginx"}), (200, {})])
def test_a_failed_attempt_keeps_harmless_headers(status, kept):
    headers = [(b"Server", b"nginx"), (b"Set-Cookie", b"session=hunter2")]
    made, _, _ = attempt(transport.Response(status=status, headers=headers, body=b""))
    assert response_headers.of(made) == kept


AUTHS = [
    Auth(kind=AuthKind.BEARER, secret=Secret(b"hunter2")),
    Auth(kind=AuthKind.API_KEY, header="x-mine", secret=Secret(b"hunter2")),
    Auth(kind=AuthKind.BASIC, username="ann", secret=Secret(b"hunter2")),
]


@pytest.mark.parametrize("auth", AUTHS, ids=[auth.kind for auth in AUTHS])
def test_a_failed_attempt_keeps_the_body_without_what_it_sent(auth):
    endpoint = builders.endpoint(auth=auth, headers=(("x-team", "logistics"),))
    echo = b"no: hunter2, YW5uOmh1bnRlcjI=, logistics"
    made, _, _ = attempt(transport.Response(status=500, headers=[], body=echo), endpoint=endpoint)
    encoded = "***" if auth.kind is AuthKind.BASIC else "YW5uOmh1bnRlcjI="
    assert response_headers.body_of(made) == f"no: ***, {encoded}, ***"
    accepted, _, _ = attempt(transport.Response(status=200, headers=[], body=echo), endpoint=endpoint)
    assert response_headers.body_of(accepted) == ""


def test_a_failed_attempt_keeps_the_body_without_the_secret_of_the_url():
    endpoint = builders.endpoint(url="https://example.com/hooks/T0123456789abcdef?key=K0123456789abcdef&team=eu")
    echo = b"no route /hooks/T0123456789abcdef?key=K0123456789abcdef&team=eu"
    made, _, _ = attempt(transport.Response(status=404, headers=[], body=echo), endpoint=endpoint)
    assert response_headers.body_of(made) == "no route /hooks/***?key=***&team=eu"


@pytest.mark.parametrize("logs_accepted", [False, True])
def test_an_accepted_attempt_keeps_its_response_by_setting(logs_accepted):
    answers = fakes.FakeTransport(transport.Response(status=200, headers=[(b"Server", b"nginx")], body=b"taken"))
    using = sender.Sender(answers, guard.Guard(), timeout_s=2.0, clock=fakes.Clock(), logs_accepted=logs_accepted)
    made = asyncio.run(using.attempt(builders.delivery(), 1))
    kept = ({"server": "nginx"}, "taken") if logs_accepted else ({}, "")
    assert (response_headers.of(made), response_headers.body_of(made)) == kept
    [entry] = log_rows.entries_of(Outcome(builders.delivery(), OutcomeKind.DELIVERED, (made,)))
    assert (entry.response or "") == kept[1]  # left out: UNSET, which is false


def test_no_body_is_kept_without_bytes_for_it():
    answers = fakes.FakeTransport(transport.Response(status=500, headers=[], body=b"no"))
    using = sender.Sender(answers, guard.Guard(), timeout_s=2.0, clock=fakes.Clock(), logged_response_bytes=0)
    made = asyncio.run(using.attempt(builders.delivery(), 1))
    assert (response_headers.body_of(made), made.response) == ("", b"no")
