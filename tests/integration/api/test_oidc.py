"""Operators use the API with tokens of an OpenID Connect provider, also while the provider changes its keys or is away."""

import logging

import pytest

from delivery.config import oidc_settings
from subscriptions_db.api.admission import admission
from tests.integration.api import world
from tests.support.oidc_provider import Provider
from tests.support.tokens import ADMINS, AUDIENCE, Issuer

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def provider():
    with Provider() as started:
        yield started


def settings_of(provider):
    return oidc_settings.OidcSettings(
        issuer=provider.issuer.url, audience=AUDIENCE, scopes={ADMINS: "operator", "ci": "publisher"}, timeout_s=2
    )


@pytest.fixture(scope="module")
def served(postgres, provider):
    with world.served(postgres, oidc=settings_of(provider), max_requests_per_s=100) as made:
        yield made


@pytest.fixture
def impatient(served, provider):
    """A server that may read the provider's keys again at once, and has read them."""
    with world.beside(served, provider_read_every_s=0) as made:
        assert made.client(provider.issuer.token()).get("/v1/tenants").status == 200
        yield made


@pytest.fixture
def away(provider):
    provider.stop()
    yield
    provider.start()


def test_an_operators_token_reads_and_changes_everything(served, provider):
    ann = served.client(provider.issuer.token())
    assert {item["id"] for item in ann.get("/v1/customers").json["items"]} == {"acme", "other"}
    assert ann.put("/v1/tenants/t3", {"name": "Third"}).status == 201
    [entry] = served.audit("t3")
    assert (entry["key_id"], entry["login"], entry["customer_id"]) == ("oidc:ann", "fanout_serve", None)
    shown = ann.get("/v1/audit-log").json["items"][0]
    assert (shown["key_id"], shown["entity_id"]) == ("oidc:ann", "t3")


def test_a_token_may_only_do_what_its_scope_permits(served, provider):
    ci = served.client(provider.issuer.token(groups=["ci"]))
    assert ci.get("/v1/customers").status == 403
    assert served.client(provider.issuer.token(groups=["staff"])).get("/v1/customers").json["code"] == "forbidden"


def test_api_keys_work_beside_tokens(served, acme, operator):
    assert operator.get("/v1/customers").status == 200
    assert acme.get("/v1/customers/other").status == 404
    assert served.client("no key and no token").get("/v1/customers").status == 401


def test_all_tokens_of_a_subject_share_one_rate(served, postgres, provider):
    first, second = (provider.issuer.token(sub="bob", jti=str(number)) for number in range(2))
    assert served.client(first).get("/v1/customers").headers["ratelimit-limit"] == "20"
    with world.served(postgres, oidc=settings_of(provider), max_requests_per_s=1) as slow:
        answers = [slow.client(token).get("/v1/customers") for token in (first, second)]
    assert [answer.status for answer in answers] == [200, 429]
    assert "fanout-key-expires-at" not in answers[0].headers


def test_an_expired_token_is_refused_with_the_reason(served, provider):
    answer = served.client(provider.issuer.token(exp=1_000_000_000)).get("/v1/customers")
    assert (answer.status, answer.json["detail"]) == (
        401,
        "the token is expired: get a new one from the provider",
    )
    assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'


def test_new_keys_of_the_provider_work_and_withdrawn_ones_end(impatient, provider):
    old = provider.issuer.token()
    assert impatient.client(old).get("/v1/tenants").status == 200
    provider.issuer.add("second")
    assert impatient.client(provider.issuer.token("second")).get("/v1/tenants").status == 200
    assert impatient.client(old).get("/v1/tenants").status == 200
    former = provider.issuer.keys.pop("first")
    try:
        assert impatient.client(Issuer(provider.issuer.url).token(header={"kid": "unknown"})).get("/v1/tenants").status == 401
        assert impatient.client(old).get("/v1/tenants").status == 401
    finally:
        provider.issuer.keys = {"first": former}


@pytest.mark.usefixtures("impatient", "away")  # the server reads the provider's keys before the provider stops
def test_known_keys_work_while_the_provider_is_away(impatient, provider, caplog):
    answer = impatient.client(provider.issuer.token(header={"kid": "not read yet"})).get("/v1/tenants")
    assert (answer.status, answer.json["code"]) == (503, "unavailable")
    assert "retry-after" in answer.headers
    assert impatient.client(provider.issuer.token(sub="carl")).get("/v1/tenants").status == 200
    assert impatient.client(impatient.keys["operator"]).get("/v1/tenants").status == 200
    assert impatient.client(None).get("/readyz").status == 200
    [line] = [record for record in caplog.records if record.message == "oidc.unavailable"]
    assert line.levelname == "WARNING"
    assert line.issuer == provider.issuer.url


def test_the_api_starts_without_the_provider_and_finds_it_later(served, provider, caplog):
    caplog.set_level(logging.INFO)
    provider.stop()
    try:
        with world.beside(served, provider_read_every_s=0) as begun:
            token, key = (begun.client(text) for text in (provider.issuer.token(), served.keys["operator"]))
            assert token.get("/v1/tenants").status == 503
            assert (key.get("/v1/tenants").status, token.get("/readyz").status) == (200, 200)
            provider.start()
            assert token.get("/v1/tenants").status == 200
    finally:
        if "oidc.available" not in caplog.messages:
            provider.start()
    assert caplog.messages.index("oidc.unavailable") < caplog.messages.index("oidc.available")


def test_no_token_is_in_a_log_an_answer_or_the_database(served, provider, caplog):
    caplog.set_level(logging.DEBUG)
    text = provider.issuer.token(sub="dora")
    client = served.client(text)
    answers = [client.put("/v1/tenants/t4", {}), client.get("/v1/nothing"), served.client(text + "x").get("/v1/tenants")]
    assert [answer.status for answer in answers] == [201, 404, 401]
    shown = caplog.text + "".join(str(vars(record)) for record in caplog.records) + str(served.audit("t4"))
    for part in text.split("."):
        assert part not in shown
        assert all(part not in str(answer.headers) + answer.text.decode() for answer in answers)


def test_a_token_is_refused_where_no_provider_is_set(postgres, provider):
    with world.served(postgres) as closed:
        answer = closed.client(provider.issuer.token()).get("/v1/tenants")
    assert (answer.status, answer.json["detail"]) == (401, admission.MALFORMED_KEY)


def test_a_huge_token_is_refused(served, provider):
    assert served.client(provider.issuer.token(padding="x" * 9000)).get("/v1/tenants").status == 400
    assert served.client(provider.issuer.token(groups=["x" * 4000])).get("/v1/tenants").status == 403
