"""A receiver is asked for permission, and its reply is parsed by the specification of web hooks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery import errors
from delivery.webhooks.http import guard
from delivery.webhooks.sending import handshake, request
from delivery.webhooks.sending.handshake import MAX_PER_MINUTE, HandshakeState, Question, Reply
from tests.support import builders

ORIGIN = "fanout.example.com"
ASK_AGAIN = "correct the receiver, then ask again"
ASKED, WITH_RATE = Question(origin=ORIGIN), Question(origin=ORIGIN, per_minute=120)
WITH_CALLBACK = Question(origin=ORIGIN, callback="https://api.example.com/v1/endpoints/ep1/permit/0a")


def answer(**headers):
    """Return the headers of a reply. A list stands for several headers of the same name."""
    named = {"origin": b"WebHook-Allowed-Origin", "rate": b"webhook-allowed-RATE"}
    several = {name: value if isinstance(value, list) else [value] for name, value in headers.items()}
    return [(named[name], value) for name, values in several.items() for value in values]


@pytest.mark.parametrize("question", [ASKED, WITH_RATE, WITH_CALLBACK])
@pytest.mark.parametrize("origin", [b"*", b"fanout.example.com", b"Fanout.Example.Com", b" * ", b"\tfanout.example.com "])
@pytest.mark.parametrize(
    ("rate", "per_minute"),
    [
        (b"*", None),
        (b"1", 1),
        (b"100", 100),
        (b" 100\t", 100),
        (b"6000000", MAX_PER_MINUTE),
        (b"6000001", MAX_PER_MINUTE),
        (b"9" * 5000, MAX_PER_MINUTE),
    ],
)
def test_an_allowed_origin_with_a_rate_permits_that_rate(question, origin, rate, per_minute):
    assert handshake.parse_reply(question, answer(origin=origin, rate=rate)) == Reply(HandshakeState.PERMITTED, per_minute)


@pytest.mark.parametrize(
    "rate",
    [b"", b"0", b"-1", b"+1", b"1.5", b"1e3", b"007", b"0x10", b"ten", b"**", b"100, 200", b"100 200", "١٠".encode(), b"\xff",
     [b"100", b"200"], [b"100", b"100"], [b"*", b"*"]],
)  # fmt: skip
@pytest.mark.parametrize("question", [ASKED, WITH_RATE, WITH_CALLBACK])
def test_an_invalid_rate_permits_nothing(question, rate):
    reply = handshake.parse_reply(question, answer(origin=b"*", rate=rate))
    assert reply.state is HandshakeState.REFUSED
    assert reply.reason.startswith("WebHook-Allowed-Rate: is neither")


def test_a_missing_rate_permits_only_if_none_was_requested():
    assert handshake.parse_reply(ASKED, answer(origin=b"*")) == Reply(HandshakeState.PERMITTED)
    refused = handshake.parse_reply(WITH_RATE, answer(origin=b"*"))
    assert refused == Reply(
        HandshakeState.REFUSED, reason=f"WebHook-Request-Rate was sent, and the answer has no WebHook-Allowed-Rate: {ASK_AGAIN}"
    )


@pytest.mark.parametrize(
    "origin",
    [b"", b"other.example.com", b"example.com", b"*.example.com", b"fanout.example.com.", b"fanout.example.com, *",
     b"https://fanout.example.com", b"\xff"],
)  # fmt: skip
@pytest.mark.parametrize("question", [ASKED, WITH_CALLBACK])
def test_another_origin_refuses_and_is_not_quoted(question, origin):
    reply = handshake.parse_reply(question, answer(origin=origin, rate=b"*"))
    assert reply == Reply(
        HandshakeState.REFUSED, reason=f"WebHook-Allowed-Origin is neither our origin, fanout.example.com, nor *: {ASK_AGAIN}"
    )


@pytest.mark.parametrize("origins", [[b"*", b"fanout.example.com"], [b"*", b"*"]])
@pytest.mark.parametrize("question", [ASKED, WITH_CALLBACK])
def test_several_origins_refuse(question, origins):
    reply = handshake.parse_reply(question, answer(origin=origins, rate=b"*"))
    assert reply == Reply(HandshakeState.REFUSED, reason=f"the answer has several WebHook-Allowed-Origin: {ASK_AGAIN}")


@pytest.mark.parametrize("headers", [[], answer(rate=b"100"), [(b"access-control-allow-origin", b"*"), (b"allow", b"POST")]])
def test_a_reply_without_an_origin_is_no_permission(headers):
    assert handshake.parse_reply(ASKED, headers) == Reply(
        HandshakeState.REFUSED, reason=f"the answer has no WebHook-Allowed-Origin: {ASK_AGAIN}"
    )
    assert handshake.parse_reply(WITH_CALLBACK, headers).state is HandshakeState.ASKED


@pytest.mark.parametrize(
    ("max_per_second", "per_minute"),
    [(None, None), (1, 60), (2.5, 150), (0.5, 30), (0.01, 1), (0.001, 1), (100_000, MAX_PER_MINUTE)],  # 0.01 · 60 = 0.6
)
def test_the_requested_rate_is_the_endpoints_own_limit(max_per_second, per_minute):
    assert handshake.wished_per_minute(max_per_second) == per_minute


@pytest.mark.parametrize(
    ("own", "permitted", "limit"),
    [(None, None, None), (5, None, 5), (None, 90, 1.5), (5, 90, 1.5), (1, 90, 1), (0.001, 1, 0.001)],  # 90 / 60 = 1.5
)
def test_the_lower_of_both_limits_applies(own, permitted, limit):
    assert handshake.limit_per_s(own, permitted) == limit


@given(
    own=st.none() | st.floats(min_value=1e-6, max_value=100_000), permitted=st.none() | st.integers(1, MAX_PER_MINUTE)
)  # fmt: skip
def test_no_limit_is_exceeded_or_invented(own, permitted):
    limit = handshake.limit_per_s(own, permitted)
    bounds = [bound for bound in (own, None if permitted is None else permitted / 60) if bound is not None]
    assert (limit is None) == (bounds == [])
    assert limit is None or (limit in bounds and all(limit <= bound for bound in bounds))


@given(st.lists(st.tuples(st.sampled_from([b"webhook-allowed-origin", b"webhook-allowed-rate"]), st.binary(max_size=12))))
def test_any_reply_of_a_receiver_is_parsed(headers):
    assert handshake.parse_reply(WITH_RATE, headers).state in HandshakeState


def test_the_handshake_goes_to_the_exact_url_alone():
    endpoint = builders.endpoint(url="https://hooks.example.com/a%20b?x=%2F", headers=(("X-Team", "billing"),), origin="old")
    question = Question(origin=ORIGIN, per_minute=60, callback="https://api.example.com/1")
    asked = request.prepare_handshake(endpoint, question, guard.Guard())
    assert asked.head.decode().split("\r\n") == [
        "OPTIONS /a%20b?x=%2F HTTP/1.1",
        "host: hooks.example.com",
        "user-agent: fanout-webhooks/1",
        "accept-encoding: identity",
        "accept: */*",
        "webhook-request-origin: fanout.example.com",
        "webhook-request-callback: https://api.example.com/1",
        "webhook-request-rate: 60",
        "",
    ]
    assert "api.example.com" not in repr(asked) + repr(question)


def test_no_handshake_goes_to_a_forbidden_address():
    with pytest.raises(errors.TargetRefused):
        request.prepare_handshake(builders.endpoint(url="https://169.254.169.254/"), ASKED, guard.Guard())


def test_only_permitted_deliveries_carry_the_origin():
    permitted, other = (
        request.prepare(builders.endpoint(origin=origin), guard.Guard()).head.decode().split("\r\n")
        for origin in (ORIGIN, None)
    )
    assert "webhook-request-origin: fanout.example.com" in permitted
    assert [line for line in other if line.startswith("webhook-request")] == []
