"""A manifest is checked as a whole, and each mistake is named by its path."""

import pytest

from delivery import errors
from delivery.registry_model import Retrying
from delivery.webhooks.http import guard
from subscriptions_db.manifest import manifest, parts
from tests.support import addresses, certificates

GUARD = guard.Guard()
ENDPOINT = {"id": "ep1", "customer": "c1", "url": "https://example.com/"}
OAUTH2 = {"kind": "oauth2", "client_id": "us", "secret": "hunter2", "token_url": "https://login.example.com/"}
SUBSCRIPTION = {"id": "s1", "endpoint": "ep1", "event_type": "order", "everything": True}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"tenant": []}, "tenant: is not a known field; did you mean tenants?"),
        ([], "must be a mapping (`name: value`), but is a list"),
        ({"tenants": [{"id": "a b"}]}, "tenants[0].id:"),
        ({"tenants": [{"id": "a"}, {"id": "a"}]}, "tenants[1].id: a is already used at tenants[0]"),
        ({"tenants": [{"id": True}]}, "tenants[0].id:"),
        ({"event_types": [{"id": "order.*"}]}, "event_types[0].id:"),
        ({"event_types": [{"id": "a", "json_schema": {"type": 1}}]}, "event_types[0].json_schema.type: must be one of"),
        (
            {"event_types": [{"id": "a", "json_schema": {"type": "string"}, "examples": ["a", {}]}]},
            "event_types[0].examples[1]: {} is not of type 'string'",
        ),
        ({"tenants": [{"id": "a", "sub_tenants": ["b", "c d"]}]}, "tenants[0].sub_tenants[1].id:"),
        (
            {"tenants": [{"id": "a", "sub_tenants": [{"id": "b", "nme": ""}]}]},
            "tenants[0].sub_tenants[0].nme: is not a known field",
        ),
        ({"subscriptions": [SUBSCRIPTION | {"everything": False, "sub_tenants": {2: []}}]}, "subscriptions[0].sub_tenants[2]:"),
        ({"endpoints": [ENDPOINT | {"url": "http://example.com/"}]}, "endpoints[0].url: must begin with https://"),
        ({"endpoints": [ENDPOINT | {"url": "https://10.0.0.1/"}]}, "endpoints[0].url: the address is not allowed"),
        (
            {"endpoints": [ENDPOINT | {"auth": {"kind": "basic", "secret": "x"}}]},
            "endpoints[0].auth: kind basic requires username",
        ),
        (
            {"endpoints": [ENDPOINT | {"auth": {"kind": "none", "secret": "x"}}]},
            "endpoints[0].auth: kind none does not allow secret",
        ),
        (
            {"endpoints": [ENDPOINT | {"auth": {"kind": "api_key", "header": "Host", "secret": "x"}}]},
            "endpoints[0].auth.headers.Host: is set by the platform",
        ),
        (
            {"endpoints": [ENDPOINT | {"auth": {"kind": "bearer", "secret": "hunter2\r\ntransfer-encoding: chunked"}}]},
            "endpoints[0].auth: the secret is not printable ASCII",
        ),
        ({"endpoints": [ENDPOINT | {"signing_secrets": ["hunter2"]}]}, "endpoints[0].signing_secrets[0]: does not"),
        (
            {"endpoints": [ENDPOINT | {"auth": OAUTH2 | {"username": "x"}}]},
            "endpoints[0].auth: kind oauth2 does not allow username",
        ),
        ({"endpoints": [ENDPOINT | {"auth": OAUTH2 | {"token_scope": "a  b"}}]}, "endpoints[0].auth.token_scope:"),
        (
            {"endpoints": [ENDPOINT | {"auth": OAUTH2 | {"token_url": "https://127.0.0.1/"}}]},
            "endpoints[0].auth.token_url: the address is not allowed",
        ),
        ({"endpoints": [ENDPOINT | {"auth": {"kind": "bearer", "secret": "hünter2"}}]}, "endpoints[0].auth: the secret is not"),
        ({"endpoints": [ENDPOINT | {"headers": {"Host": "x"}}]}, "endpoints[0].headers.Host: is set by the platform"),
        ({"endpoints": [ENDPOINT | {"headers": {"X-A": 1}}]}, "endpoints[0].headers.X-A: must be text"),
        ({"endpoints": [ENDPOINT | {"content_mode": "xml"}]}, "endpoints[0].content_mode:"),
        ({"endpoints": [ENDPOINT | {"batch": {"max_events": 5}}]}, "endpoints[0]: batch is allowed only with `mode: batch`"),
        ({"endpoints": [ENDPOINT | {"mode": "batch", "batch": {"max_events": 10_001}}]}, "endpoints[0].batch.max_events:"),
        ({"endpoints": [ENDPOINT | {"mode": "batch", "batch": {"max_wait_s": 0}}]}, "endpoints[0].batch.max_wait_s:"),
        ({"endpoints": [ENDPOINT | {"mode": "batch", "batch": {"max_bytes": 4095}}]}, "endpoints[0].batch.max_bytes:"),
        (
            {"endpoints": [ENDPOINT | {"mode": "batch", "content_mode": "cloudevents_binary"}]},
            "endpoints[0]: content_mode cloudevents_binary is allowed only with `mode: direct`",
        ),
        ({"endpoints": [ENDPOINT | {"retry": {"schedule_s": [5, 0]}}]}, "endpoints[0].retry.schedule_s[1]:"),
        ({"endpoints": [ENDPOINT | {"retry": {"schedule_s": [604_801]}}]}, "endpoints[0].retry.schedule_s[0]:"),
        ({"endpoints": [ENDPOINT | {"retry": {"schedule_s": [1] * 51}}]}, "endpoints[0].retry.schedule_s:"),
        ({"endpoints": [ENDPOINT | {"retry": {"max_age_s": 2_592_001}}]}, "endpoints[0].retry.max_age_s:"),
        ({"endpoints": [ENDPOINT | {"retry": {"timeout_s": 61}}]}, "endpoints[0].retry.timeout_s:"),
        ({"endpoints": [ENDPOINT | {"order_by": "a..b"}]}, "endpoints[0].order_by:"),
        (
            {"endpoints": [ENDPOINT | {"mode": "batch", "order_by": "a"}]},
            "endpoints[0]: order_by is allowed only with `mode: direct`",
        ),
        ({"endpoints": [ENDPOINT | {"max_in_flight": 0}]}, "endpoints[0].max_in_flight:"),
        ({"endpoints": [ENDPOINT | {"max_per_second": float("nan")}]}, "endpoints[0].max_per_second:"),
        (
            {"endpoints": [ENDPOINT | {"tls": {"key": "hunter2"}}]},
            "endpoints[0].tls: certificate and key must be given together",
        ),
        ({"endpoints": [ENDPOINT | {"tls": {"authorities": "x" * 65_537}}]}, "endpoints[0].tls.authorities:"),
        ({"endpoints": [ENDPOINT | {"signing_secrets": ["whsec_" + "QUFB" * 8] * 6}]}, "endpoints[0].signing_secrets:"),
        ({"subscriptions": [SUBSCRIPTION | {"event_type": "order*"}]}, "subscriptions[0].event_type:"),
        ({"subscriptions": [SUBSCRIPTION | {"everything": False}]}, "subscriptions[0]: does not say whose events"),
        ({"subscriptions": [SUBSCRIPTION | {"tenants": ["t1"]}]}, "subscriptions[0]: has everything: true beside"),
        (
            {"subscriptions": [SUBSCRIPTION | {"filter": {"data": {"a": [{"prefx": "x"}]}}}]},
            "subscriptions[0].filter.data.a[0].prefx: unknown operator; did you mean prefix?",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_its_path(document, said):
    with pytest.raises(errors.RegistrationError) as refused:
        manifest.check(document, GUARD)
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_every_internal_address_gets_the_same_message():
    said = set()
    for host in [*addresses.INSIDE, *addresses.NAMES]:
        with pytest.raises(errors.RegistrationError) as refused:
            manifest.check({"endpoints": [ENDPOINT | {"url": addresses.url_of(host)}]}, GUARD)
        said.add(str(refused.value))
    assert said == {"endpoints[0].url: the address is not allowed: an endpoint is a public https address"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenants:\n\t- x", "line 2: not YAML"),
        ("tenants: [{id: a}]\ntenants: [{id: b}]", "line 2: not YAML: tenants is given twice: keep one"),
        ("tenants: " + "[" * 5000, "not YAML"),
    ],
)
def test_text_that_is_not_yaml_is_refused_with_its_line(text, said):
    with pytest.raises(errors.RegistrationError, match=said):
        manifest.load(text, GUARD)


def test_an_empty_document_registers_nothing():
    assert manifest.load("", GUARD) == manifest.Manifest()


def test_a_client_certificate_that_openssl_does_not_use_is_refused():
    """Regression: it was accepted, and each delivery failed."""
    weak = certificates.weak_client_tls()
    fields = {"certificate": weak.certificate, "key": weak.key.reveal().decode()}
    with pytest.raises(
        errors.RegistrationError, match=r"^endpoints\[0\].tls: .* cannot be used \(EE_KEY_TOO_SMALL\)"
    ) as refused:
        manifest.check({"endpoints": [ENDPOINT | {"tls": fields}]}, GUARD)
    assert "BEGIN" not in str(refused.value)


def test_a_whole_number_is_accepted_as_an_id():
    [row] = manifest.load("tenants: [{id: 2, sub_tenants: [100]}]", GUARD).tenants
    assert (row.id, [department.id for department in row.sub_tenants]) == ("2", ["100"])


def test_a_manifest_does_not_show_its_secrets():
    shown = repr(manifest.check({"endpoints": [ENDPOINT | {"auth": {"kind": "bearer", "secret": "hunter2"}}]}, GUARD))
    assert "hunter2" not in shown


def in_words(*seconds):
    """Return durations as the descriptions of the manifest have them, such as `5 s, 5 min, 2 h, 3 days`."""
    units = {"days": 86_400, "h": 3600, "min": 60, "s": 1}
    longest = [next(unit for unit, size in units.items() if value % size == 0) for value in seconds]
    return ", ".join(f"{value // units[unit]:g} {unit}" for value, unit in zip(seconds, longest, strict=True))


def test_the_described_defaults_of_a_retry_schedule_are_those_of_the_job():
    """Regression: the descriptions repeat values of another module, and nothing held them equal."""
    default = Retrying()
    described = {name: " ".join(field.description.split()) for name, field in parts.RetryFields.model_fields.items()}
    expected = {
        "schedule_s": in_words(*default.schedule_s),
        "max_age_s": in_words(default.max_age_s),
        "timeout_s": f"{default.timeout_s:g}",
    }
    assert {name: text.rpartition("Default: ")[2].rstrip(".") for name, text in described.items()} == expected
