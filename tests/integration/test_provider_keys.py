"""The keys of a real OpenID Connect provider are read within bounds, over TLS, and only from the server of the settings."""

import asyncio

import pytest
from aiohttp import web

from delivery.config import oidc_settings
from subscriptions_db.api.contract import problems
from subscriptions_db.api.oidc import provider_keys
from tests.support import certificates
from tests.support.oidc_provider import DISCOVERY, KEYS, Provider

pytestmark = pytest.mark.integration


@pytest.fixture
def provider():
    with Provider() as started:
        yield started


def config_of(provider, **fields):
    return oidc_settings.OidcSettings(**{"issuer": provider.issuer.url, "audience": "a", "scopes": {"v": "operator"}} | fields)


def looked_up(config, *kids, clock=None):
    """Return whether each key is found, or the status of the refusal."""

    async def all_of_them():
        keys = provider_keys.ProviderKeys(config, **({} if clock is None else {"clock": clock}))
        found = []
        for kid in kids:
            try:
                found.append(await keys.find(kid, "RS256") is not None)
            except problems.Refused as exc:
                found.append(exc.problem.status)
        return found

    return asyncio.run(all_of_them())


def test_keys_are_read_once_for_many_tokens(provider):
    assert looked_up(config_of(provider), *["first"] * 5) == [True] * 5
    assert provider.requests == [DISCOVERY, KEYS]


def test_unknown_key_ids_cannot_flood_the_provider(provider):
    assert looked_up(config_of(provider), *(f"invented-{number}" for number in range(100))) == [False] * 100
    assert provider.requests == [DISCOVERY, KEYS]


def test_many_tokens_at_once_wait_for_one_read(provider):
    async def at_once():
        keys = provider_keys.ProviderKeys(config_of(provider))
        return await asyncio.gather(*(keys.find("first", "RS256") for _ in range(20)))

    assert all(asyncio.run(at_once()))
    assert provider.requests == [DISCOVERY, KEYS]


def test_a_client_that_hangs_up_does_not_end_the_read_for_others(provider):
    async def first_hangs_up():
        keys = provider_keys.ProviderKeys(config_of(provider))
        first, second = (asyncio.create_task(keys.find("first", "RS256")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(first_hangs_up()) is not None


def test_old_keys_are_read_again_beside_the_requests_and_too_old_ones_end(provider):
    now = 0.0

    async def over_a_day():
        nonlocal now
        keys = provider_keys.ProviderKeys(config_of(provider), clock=lambda: now)
        await keys.read()
        read, version = len(provider.requests), keys.version
        now += provider_keys.REFRESH_S + 1
        assert await keys.find("first", "RS256") is not None
        await keys.read()  # waits for the one that has begun
        assert len(provider.requests) == 2 * read
        assert keys.version == version
        provider.stop()
        now += provider_keys.MAX_AGE_S
        assert await keys.find("first", "RS256") is not None
        now += 1
        with pytest.raises(problems.Refused) as refused:
            await keys.find("first", "RS256")
        assert refused.value.problem.status == 503
        provider.start()

    asyncio.run(over_a_day())


def redirect(provider):
    return web.Response(status=302, headers={"location": provider.issuer.url + KEYS})


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (redirect, "status 302"),
        (lambda _: web.Response(status=500), "status 500"),
        (lambda _: web.Response(text="<html>"), "not a JSON object"),
        (lambda _: web.Response(text="[1]"), "not a JSON object"),
        (lambda _: web.Response(body=b"x" * (provider_keys.MAX_BYTES + 1)), "larger than"),
        (lambda provider: web.json_response({"issuer": provider.issuer.url + "/"}), "is of issuer"),
        (lambda provider: web.json_response({"issuer": provider.issuer.url}), "jwks_uri"),
        (lambda provider: web.json_response({"issuer": provider.issuer.url, "jwks_uri": "file:///etc/passwd"}), "jwks_uri"),
    ],
)
def test_an_unusable_answer_is_logged_and_tokens_get_503(provider, caplog, answer, cause):
    async def made():
        return answer(provider)

    provider.answer = made
    assert looked_up(config_of(provider), "first", "first") == [503, 503]
    [line] = [record for record in caplog.records if record.message == "oidc.unavailable"]
    assert cause in line.cause
    assert "oidc.issuer" in line.advice


def test_a_provider_that_does_not_answer_in_time_is_away(provider, caplog):
    async def never():
        await asyncio.Event().wait()

    provider.answer = never
    assert looked_up(config_of(provider, timeout_s=0.05), "first") == [503]
    assert "no answer in time" in [record.cause for record in caplog.records if record.message == "oidc.unavailable"]


def test_tls_needs_an_authority_that_is_trusted(tmp_path):
    authority = certificates.authority("of the provider")
    (tmp_path / "ca.pem").write_text(authority.pem)
    with Provider(certificates.server_context(certificates.issue("provider", issuer=authority))) as provider:
        assert looked_up(config_of(provider), "first") == [503]
        assert looked_up(config_of(provider, ca_file=str(tmp_path / "ca.pem")), "first") == [True]
        provider.discovered = {"jwks_uri": provider.issuer.url.replace("https", "http") + KEYS}
        assert looked_up(config_of(provider, ca_file=str(tmp_path / "ca.pem")), "first") == [503]
