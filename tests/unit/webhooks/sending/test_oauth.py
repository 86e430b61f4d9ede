"""Tokens makes one token request for many attempts, renews tokens in time, shows none, and spares a broken token server."""

import asyncio
import base64

import orjson
import pytest

from delivery import errors
from delivery.registry_model import Auth, AuthKind
from delivery.secret import Secret
from delivery.webhooks.http import guard, transport
from delivery.webhooks.policy import error_classes, response_headers
from delivery.webhooks.sending import oauth, request, sender
from tests.support import builders, fakes

SECRET = "s3cret:&ü"
AUTH = Auth(
    kind=AuthKind.OAUTH2,
    client_id="client:1",
    secret=Secret(SECRET.encode()),
    token_url="https://login.example.com/token?tenant=1",
    token_scope="events.write more",
)
GRANT = request.prepare(builders.endpoint(auth=AUTH), guard.Guard()).grant
TIMEOUT_S = 2.0


def granted(value="t1", **fields):
    return transport.Response(
        status=200, headers=(), body=orjson.dumps({"access_token": value, "token_type": "Bearer"} | fields)
    )


class Servers:
    """A token server and an endpoint behind one transport. Each responds by a script, whose last step repeats."""

    def __init__(self, *grants, answers=(200,)):
        self._grants, self._answers = list(grants), list(answers)
        self.token_requests, self.posted = [], []
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def post(self, to, headers, body, timeout_s):
        assert timeout_s <= TIMEOUT_S
        if to is not None and b"/token" in to.head:
            self.token_requests.append((to, body))
            await self.is_open.wait()
            step = self._grants.pop(0) if len(self._grants) > 1 else self._grants[0]
        else:
            self.posted.append(headers)
            step = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(step, Exception):
            raise step
        return step if isinstance(step, transport.Response) else transport.Response(status=step, headers=(), body=b"")

    def tokens_sent(self):
        return [
            line.partition(b"Bearer ")[2] for headers in self.posted for line in headers.split(b"\r\n") if b"Bearer" in line
        ]


def tokens(servers, clock=None):
    return oauth.Tokens(servers, timeout_s=TIMEOUT_S, monotonic=clock or fakes.Clock())


def test_token_requests_use_form_encoded_basic_auth():
    """RFC 6749, section 2.3.1: a colon in the id or a space in the secret must not shift the border between them."""
    lines = GRANT.to.head.decode().split("\r\n")
    assert lines[:2] == ["POST /token?tenant=1 HTTP/1.1", "host: login.example.com"]
    assert "authorization: Basic " + base64.b64encode(b"client%3A1:s3cret%3A%26%C3%BC").decode() in lines
    assert "content-type: application/x-www-form-urlencoded" in lines
    assert GRANT.body == b"grant_type=client_credentials&scope=events.write+more"


def test_many_deliveries_wait_for_one_token_request():
    async def main():
        servers = Servers(granted(expires_in=60))
        servers.is_open.clear()
        cache = tokens(servers)
        waiting = [asyncio.create_task(cache.header(GRANT, TIMEOUT_S)) for _ in range(50)]
        await asyncio.sleep(0)
        servers.is_open.set()
        return set(await asyncio.gather(*waiting)), len(servers.token_requests)

    assert asyncio.run(main()) == ({b"authorization: Bearer t1\r\n"}, 1)


def test_a_cancelled_wait_leaves_the_request_to_others():
    async def main():
        servers = Servers(granted(expires_in=60))
        servers.is_open.clear()
        cache = tokens(servers)
        patient = asyncio.create_task(cache.header(GRANT, TIMEOUT_S))
        with pytest.raises(errors.TokenRefused, match="within the attempt's time"):
            await cache.header(GRANT, 0.001)
        servers.is_open.set()
        return await patient, len(servers.token_requests)

    assert asyncio.run(main()) == (b"authorization: Bearer t1\r\n", 1)


@pytest.mark.parametrize(
    ("age_s", "sent", "requests"),
    [
        (0, b"t1", 1),
        (79, b"t1", 1),  # the last 20 of 100 s are for renewing
        (81, b"t1", 2),  # the old token is used while a new one is fetched
        (101, b"t2", 2),  # the old token has ended: wait for the new one
    ],
)
def test_a_token_is_renewed_before_it_ends(age_s, sent, requests):
    async def main():
        clock = fakes.Clock()
        servers = Servers(granted("t1", expires_in=100), granted("t2", expires_in=100))
        cache = tokens(servers, clock)
        await cache.header(GRANT, TIMEOUT_S)
        clock.now += age_s
        line = await cache.header(GRANT, TIMEOUT_S)
        await asyncio.sleep(0)
        return line, len(servers.token_requests)

    assert asyncio.run(main()) == (b"authorization: Bearer %s\r\n" % sent, requests)


def test_a_renewal_that_fails_does_not_take_the_old_token_away():
    async def main():
        clock = fakes.Clock()
        servers = Servers(granted(expires_in=100), 500)
        cache = tokens(servers, clock)
        await cache.header(GRANT, TIMEOUT_S)
        clock.now += 90
        for _ in range(10):
            assert await cache.header(GRANT, TIMEOUT_S) == b"authorization: Bearer t1\r\n"
            await asyncio.sleep(0)
        return len(servers.token_requests)

    assert asyncio.run(main()) == 2


@pytest.mark.parametrize("age_s", [90, 101])
def test_an_unforeseen_error_is_logged_and_followed_by_a_pause(age_s, caplog):
    """Regression: nobody saw the error of a renewal, and each delivery requested a token again."""

    async def main():
        clock, servers = fakes.Clock(), Servers(granted("t1", expires_in=100), ValueError("ours"), granted("t2"))
        cache, lines = tokens(servers, clock), []
        await cache.header(GRANT, TIMEOUT_S)
        clock.now += age_s
        for _ in range(10):
            try:
                lines.append(await cache.header(GRANT, TIMEOUT_S))
            except errors.LocalFailure as failure:
                lines.append(str(failure))
            await asyncio.sleep(0)
        asked = len(servers.token_requests)
        clock.now += oauth.RETRY_PAUSE_S + 10
        return set(lines), asked, await cache.header(GRANT, TIMEOUT_S)

    seen = b"authorization: Bearer t1\r\n" if age_s < 100 else error_classes.UNFORESEEN_DETAIL
    assert asyncio.run(main()) == ({seen}, 2, b"authorization: Bearer t2\r\n")
    assert [record.exc_info[0] for record in caplog.records] == [ValueError]


REFUSALS = [
    pytest.param(
        transport.Response(status=401, headers=(), body=b'{"error":"invalid_client"}'), "401 invalid_client", id="refused"
    ),
    pytest.param(
        transport.Response(status=400, headers=(), body=orjson.dumps({"error": SECRET})),
        "answered 400",
        id="secret in the error",
    ),
    pytest.param(302, "answered 302", id="redirect"),
    pytest.param(transport.Response(status=200, headers=(), body=b"<html>"), "no usable access_token", id="not JSON"),
    pytest.param(transport.Response(status=200, headers=(), body=b"[]"), "no usable access_token", id="not an object"),
    pytest.param(granted("a\r\nhost: elsewhere"), "no usable access_token", id="line break in the token"),
    pytest.param(granted(""), "no usable access_token", id="empty token"),
    pytest.param(granted(token_type="mac"), "token_type", id="another kind of token"),
    pytest.param(errors.DnsFailed("the host name did not resolve"), r"token server \(the host name", id="not reached"),
    pytest.param(errors.AttemptTimedOut("the time ran out"), r"token server \(the time ran out\)", id="too slow"),
]


@pytest.mark.parametrize(("answer", "detail"), REFUSALS)
def test_a_failed_token_request_holds_for_all_for_a_while(answer, detail):
    async def main():
        clock = fakes.Clock()
        servers = Servers(answer)
        cache = tokens(servers, clock)
        for _ in range(10):
            with pytest.raises(errors.TokenRefused, match=detail) as refused:
                await cache.header(GRANT, TIMEOUT_S)
            assert "s3cret" not in str(refused.value)
            clock.now += oauth.RETRY_PAUSE_S / 20
        asked = len(servers.token_requests)
        clock.now += oauth.RETRY_PAUSE_S
        with pytest.raises(errors.TokenRefused):
            await cache.header(GRANT, TIMEOUT_S)
        return asked, len(servers.token_requests)

    assert asyncio.run(main()) == (1, 2)


def test_our_own_exhaustion_is_not_remembered():
    async def main():
        cache = tokens(servers := Servers(errors.LocalFailure("Too many open files"), granted()))
        with pytest.raises(errors.LocalFailure):
            await cache.header(GRANT, TIMEOUT_S)
        return await cache.header(GRANT, TIMEOUT_S), len(servers.token_requests)

    assert asyncio.run(main()) == (b"authorization: Bearer t1\r\n", 2)


@pytest.mark.parametrize(
    ("expires_in", "lifetime_s"), [(60, 60), ("60", 60), (None, 300), (-5, 300), ("soon", 300), ("nan", 300), ("inf", 300)]
)
def test_the_lifetime_may_be_text_or_missing(expires_in, lifetime_s):
    async def main():
        clock = fakes.Clock()
        cache = tokens(Servers(granted("t1", expires_in=expires_in), granted("t2")), clock)
        await cache.header(GRANT, TIMEOUT_S)
        clock.now += lifetime_s - 0.5
        before = await cache.header(GRANT, TIMEOUT_S)
        clock.now += 1
        return before, await cache.header(GRANT, TIMEOUT_S)

    assert asyncio.run(main()) == (b"authorization: Bearer t1\r\n", b"authorization: Bearer t2\r\n")


def attempts(servers, count=1, clock=None):
    async def main():
        now_s = clock or fakes.Clock()
        using = sender.Sender(servers, guard.Guard(), timeout_s=TIMEOUT_S, clock=now_s, monotonic=now_s, endpoint_time=now_s)
        delivery = builders.delivery(endpoint=builders.endpoint(auth=AUTH))
        return [await using.attempt(delivery, number) for number in range(1, count + 1)]

    return asyncio.run(main())


def test_each_request_carries_the_token_and_the_signature():
    [made] = attempts(servers := Servers(granted()))
    assert (made.error_class, servers.tokens_sent()) == (None, [b"t1"])
    assert b"webhook-signature: v1," in servers.posted[0]


def test_a_401_renews_the_token_and_repeats_once():
    [made] = attempts(servers := Servers(granted("t1"), granted("t2"), answers=(401, 200)))
    assert (made.error_class, servers.tokens_sent()) == (None, [b"t1", b"t2"])


@pytest.mark.parametrize(("status", "token"), [(403, "t0ken-1"), (401, "t0ken-2")])
def test_a_failed_attempt_keeps_the_body_without_its_token(status, token):
    """A receiver wrote: access token 8f7a… is expired. The token is in no setting of the endpoint, so it was kept."""
    said = transport.Response(status=status, headers=(), body=f"{token} is expired".encode())
    [made] = attempts(Servers(granted("t0ken-1"), granted("t0ken-2"), answers=(said,)))
    assert response_headers.body_of(made) == "*** is expired"


def test_a_step_of_the_drivers_time_delays_no_token_request():
    """Regression: after a step back by ten minutes, no token was requested for ten minutes."""

    async def main():
        clock, ticks, servers = fakes.Clock(), fakes.Clock(100.0), Servers(errors.ConnectFailed("refused"), granted())
        using = sender.Sender(servers, guard.Guard(), timeout_s=TIMEOUT_S, clock=clock, monotonic=ticks)
        delivery = builders.delivery(endpoint=builders.endpoint(auth=AUTH))
        first = await using.attempt(delivery, 1)
        clock.now -= 600
        ticks.now += oauth.RETRY_PAUSE_S
        return first.error_class, (await using.attempt(delivery, 2)).error_class

    assert asyncio.run(main()) == ("token_refused", None)


def test_a_second_401_is_a_refusal_without_a_renewal():
    made = attempts(servers := Servers(granted(), answers=(401,)), count=20)
    assert {(attempt.status, attempt.error_class) for attempt in made} == {(401, "refused")}
    assert len(servers.token_requests) == 2  # the first token, and one renewal in RETRY_PAUSE_S
    assert len(servers.posted) == 21


def test_the_401s_of_many_at_once_lead_to_one_renewal():
    async def main():
        servers = Servers(granted("t1"), granted("t2"), answers=(*[401] * 8, 200))
        using = sender.Sender(servers, guard.Guard(), timeout_s=TIMEOUT_S, clock=fakes.Clock())
        delivery = builders.delivery(endpoint=builders.endpoint(auth=AUTH))
        made = await asyncio.gather(*(using.attempt(delivery, 1) for _ in range(8)))
        return {attempt.error_class for attempt in made}, len(servers.token_requests)

    assert asyncio.run(main()) == ({None}, 2)


def test_after_a_401_an_attempt_waits_for_the_renewal_in_flight():
    """Regression: while the old token was renewed before its end, the second request had the old token too."""

    async def main():
        clock, servers = fakes.Clock(), Servers(granted("t1", expires_in=100), granted("t2", expires_in=100), granted("t3"))
        cache = tokens(servers, clock)
        refused = await cache.header(GRANT, TIMEOUT_S)
        clock.now += 90
        servers.is_open.clear()
        assert await cache.header(GRANT, TIMEOUT_S) == refused
        waiting = [asyncio.create_task(cache.header_after_401(refused, GRANT, TIMEOUT_S)) for _ in range(8)]
        await asyncio.sleep(0)
        servers.is_open.set()
        newer = set(await asyncio.gather(*waiting))
        return newer, await cache.header_after_401(*newer, GRANT, TIMEOUT_S), len(servers.token_requests)

    assert asyncio.run(main()) == ({b"authorization: Bearer t2\r\n"}, None, 2)


def test_a_401_does_not_take_the_token_from_other_endpoints():
    """Regression: after a 401 of one endpoint, all endpoints with the same auth failed until the token server answered."""

    async def main():
        clock, servers = fakes.Clock(), Servers(granted("t1", expires_in=3600), errors.ConnectFailed("refused"), granted("t2"))
        servers._answers = [401, 200]  # the endpoint `strict` refuses the token that the other accepts
        using = sender.Sender(servers, guard.Guard(), timeout_s=TIMEOUT_S, clock=clock, monotonic=clock)
        strict, other = (builders.delivery(endpoint=builders.endpoint(name, auth=AUTH)) for name in ("strict", "other"))
        made = [(await using.attempt(delivery, 1)).error_class for delivery in (strict, other)]
        servers._answers, clock.now = [401, 200], clock.now + oauth.RETRY_PAUSE_S
        return *made, (await using.attempt(strict, 2)).error_class, servers.tokens_sent()

    assert asyncio.run(main()) == ("token_refused", None, None, [b"t1", b"t1", b"t1", b"t2"])


def test_after_a_failed_renewal_a_refused_attempt_fails_likewise():
    async def main():
        cache = tokens(Servers(granted("t1", expires_in=3600), errors.ConnectFailed("down")), fakes.Clock())
        made = [cache.header_after_401(await cache.header(GRANT, 2.0), GRANT, 2.0) for _ in range(2)]
        return [type((await asyncio.gather(each, return_exceptions=True))[0]) for each in made]

    assert asyncio.run(main()) == [errors.TokenRefused] * 2


def test_an_attempt_without_a_token_is_not_sent():
    [made] = attempts(servers := Servers(500))
    assert (made.status, made.error_class) == (None, "token_refused")
    assert made.detail == "the token server answered 500, so the attempt failed: check that server and auth.token_url"
    assert servers.posted == []


class Slow(Servers):
    """Servers that take time of `clock`: the token server `token_s` seconds for each response, the endpoint `answer_s`."""

    def __init__(self, *grants, clock, token_s, answer_s, answers=(200,)):
        super().__init__(*grants, answers=answers)
        self._clock, self._token_s, self._answer_s = clock, token_s, answer_s

    async def post(self, to, headers, body, timeout_s):
        takes_s = self._token_s if b"/token" in to.head else self._answer_s
        self._clock.now += min(takes_s, timeout_s)
        if takes_s > timeout_s:
            raise errors.AttemptTimedOut("late")
        return await super().post(to, headers, body, timeout_s)


@pytest.mark.parametrize(
    ("token_s", "answer_s", "answers", "error_class"),
    [
        pytest.param(1.9, 0.05, (200,), None, id="a quick endpoint behind a slow token server"),
        pytest.param(1.9, 0.15, (200,), "token_refused", id="no time left by the token server"),
        pytest.param(1.4, 0.7, (200,), "timeout", id="more than a quarter left"),
        pytest.param(0.8, 0.15, (401, 200), None, id="a renewal leaves enough"),
        pytest.param(0.85, 0.16, (401, 200), "token_refused", id="a renewal leaves too little"),
        pytest.param(0.05, 1.6, (401, 200), "timeout", id="the endpoint itself was slow with its 401"),
    ],
)
def test_a_timeout_is_the_fault_of_the_server_that_took_the_time(token_s, answer_s, answers, error_class):
    """Regression: behind a slow token server the request failed as `timeout`, and opened the endpoint's breaker sooner."""
    clock = fakes.Clock()
    servers = Slow(granted("t1"), granted("t2"), clock=clock, token_s=token_s, answer_s=answer_s, answers=answers)
    [made] = attempts(servers, clock=clock)
    assert made.error_class == error_class
    assert ("the token server took" in made.detail) is (error_class == "token_refused")


def test_neither_secret_nor_token_show_anywhere(caplog):
    caplog.set_level("DEBUG")
    servers = Servers(granted("t0ken"), errors.ConnectFailed("refused"), answers=(401,))
    made = attempts(servers, count=2)
    shown = caplog.text + repr(made) + repr(GRANT) + repr(AUTH) + repr(oauth._Token(header=b"t0ken"))
    assert not any(word in shown for word in ("s3cret", "t0ken", base64.b64encode(b"client%3A1:s3cret").decode()))


@pytest.mark.parametrize(
    "changes",
    [
        {"client_id": None},
        {"secret": None},
        {"token_url": None},
        {"token_url": "https://169.254.169.254/token"},
        {"token_url": "http://login.example.com/token"},
    ],
)
def test_incomplete_oauth_settings_are_refused(changes):
    fields = {"kind": AUTH.kind, "client_id": "c", "secret": AUTH.secret, "token_url": AUTH.token_url}
    with pytest.raises(errors.TargetRefused) as refused:
        request.prepare(builders.endpoint(auth=Auth(**fields | changes)), guard.Guard())
    assert refused.value.path.startswith("auth")
