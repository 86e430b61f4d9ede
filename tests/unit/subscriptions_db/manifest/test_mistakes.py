"""Mistakes that people make in a manifest, each with its message: the line, the field, and what to write."""

# ruff: noqa: E501  # a message is one line

import pickle

import pytest

from delivery import errors
from delivery.webhooks.http import guard
from subscriptions_db.manifest import manifest, mistakes

GUARD = guard.Guard()
ENDPOINT = """\
endpoints:
  - id: ep1
    customer: c1
    url: https://example.com/
"""
SUBSCRIPTION = """\
subscriptions:
  - id: s1
    endpoint: ep1
    event_type: order.created
    everything: true
"""
MISTAKES = [
    (
        "tenants:\n\t- id: a\n",
        "2: not YAML: a character here begins nothing in YAML: indent with spaces, not tabs; put text that begins with @ ` or % in quotes",
    ),
    (
        "customers:\n  - id: acme\n    name: ACME: Inc\n",
        "3: not YAML: a colon is not allowed here: put text that contains `: ` in quotes, or fix the indentation",
    ),
    (
        "customers:\n  - id: acme\n   name: x\n",
        "3: not YAML: the indentation differs from the lines around it, or a bracket or quote is not closed: correct or close it",
    ),
    (
        "tenants: [{id: a}, {id: b}\ncustomers: []\n",
        "2: not YAML: a list or mapping in brackets is not closed, or a comma is missing: add the bracket or the comma",
    ),
    (
        'customers:\n  - id: "acme\n',
        "3: not YAML: a quote is not closed: add the closing quote",
    ),
    (
        "tenants: [{id: a}]\ntenants: [{id: b}]\n",
        "2: not YAML: tenants is given twice: keep one",
    ),
    (
        "tenants: []\n---\ntenants: []\n",
        "2: not YAML: a second document begins here (---): put each document into a file of its own",
    ),
    (
        "tenants: !!python/object:os.system {}\n",
        "1: not YAML: tags (`!…`) are not supported: put text that begins with ! in quotes",
    ),
    (
        "subscriptions:\n  - id: s1\n    event_type: *\n",
        '3: not YAML: text cannot begin with `*` or `&`: put it in quotes, such as event_type: "*"',
    ),
    (
        "tenants:\n  - id: @a\n",
        "2: not YAML: a character here begins nothing in YAML: indent with spaces, not tabs; put text that begins with @ ` or % in quotes",
    ),
    (
        b"tenants:\n  - id: a\n    name: caf\xe9\n",
        "3: not YAML: byte 0xe9 is not UTF-8: save the file as UTF-8",
    ),
    (
        "tenants:\n  - id: a\n    name: caf\u00e9 \x07\n",
        "3: not YAML: the control character U+0007 is not allowed: remove it",
    ),
    (
        "tenants:\n  - id: \ud800\n",
        "2: not YAML: the character U+D800 is not allowed: remove it",
    ),
    (
        "tenants:\n  - id: !!int abc\n",
        "2: not YAML: a value does not fit its tag !!int: correct it, or put it in quotes without a tag",
    ),
    (
        "tenants: - id: a\n",
        "1: not YAML: `- ` is not allowed here: begin the list on a line of its own",
    ),
    (
        "- id: a\n",
        "must be a mapping (`name: value`), but is a list",
    ),
    (
        "tenants\ncustomers: []\n",
        "2: not YAML: a colon is not allowed here: put text that contains `: ` in quotes, or fix the indentation",
    ),
    (
        "tenant: []\n",
        "1: tenant: is not a known field; did you mean tenants?",
    ),
    (
        ENDPOINT + "    urll: x\n",
        "5: endpoints[0].urll: is not a known field; did you mean url?",
    ),
    (
        "endpoints:\n  - id: ep1\n    customer: c1\n",
        "2: endpoints[0].url: is missing: add it",
    ),
    (
        "tenants:\n  - id:\n",
        "2: tenants[0].id: must be text, but is empty",
    ),
    (
        "tenants:\n  - id: true\n",
        "2: tenants[0].id: must be text, but is true or false: put it in quotes",
    ),
    (
        "tenants:\n  - id: a b\n",
        "2: tenants[0].id: is not a valid id: use 1 to 128 letters, digits, `_` `.` `:` or `-`, and begin with a letter or digit",
    ),
    (
        "tenants:\n  - id: 1.5\n",
        "2: tenants[0].id: must be text, but is a number: put it in quotes",
    ),
    (
        "tenants: {id: a}\n",
        "1: tenants: must be a list, but is a mapping",
    ),
    (
        SUBSCRIPTION.replace("    everything: true\n", "    everything: maybe\n"),
        "5: subscriptions[0].everything: must be true or false, but is other text",
    ),
    (
        ENDPOINT.replace("https://example.com/", "http://example.com/"),
        "4: endpoints[0].url: must begin with https://",
    ),
    (
        ENDPOINT.replace("https://example.com/", "https://10.0.0.1/"),
        "4: endpoints[0].url: the address is not allowed: an endpoint is a public https address",
    ),
    (
        ENDPOINT.replace("https://example.com/", "example.com/"),
        "4: endpoints[0].url: must begin with https://",
    ),
    (
        ENDPOINT.replace("https://example.com/", "https://a:b@example.com/"),
        "4: endpoints[0].url: contains a user name or password: remove it, and use auth",
    ),
    (
        ENDPOINT.replace("https://example.com/", "https://example.com:9000/"),
        "4: endpoints[0].url: has port 9000: use one of 80, 443, 8080, 8443",
    ),
    (
        ENDPOINT.replace("https://example.com/", "https://example.com/a b"),
        "4: endpoints[0].url: holds a character that no URL has: percent-encode it; in a host, use punycode (xn--…)",
    ),
    (
        SUBSCRIPTION.replace("order.created", "order*"),
        "4: subscriptions[0].event_type: is not a valid event type: write one type (order.created), a prefix (order.*), or * for all. Parts between dots have letters, digits, `_` `:` `/` `-`",
    ),
    (
        SUBSCRIPTION.replace("order.created", "order created"),
        "4: subscriptions[0].event_type: is not a valid event type: write one type (order.created), a prefix (order.*), or * for all. Parts between dots have letters, digits, `_` `:` `/` `-`",
    ),
    (
        SUBSCRIPTION + "    filter: {data: {amount: [{prefx: a}]}}\n",
        "6: subscriptions[0].filter.data.amount[0].prefx: unknown operator; did you mean prefix?",
    ),
    (
        SUBSCRIPTION + "    filter: {data: {status: paid}}\n",
        '6: subscriptions[0].filter.data.status: must be an object of fields, or a list of at least one value, such as ["paid"]',
    ),
    (
        SUBSCRIPTION + '    filter: {data: {amount: [{numeric: [">", "5"]}]}}\n',
        '6: subscriptions[0].filter.data.amount[0].numeric: > compares with a number, not with "5"',
    ),
    (
        SUBSCRIPTION + '    filter: {data: {amount: [{numeric: [">", true]}]}}\n',
        "6: subscriptions[0].filter.data.amount[0].numeric: > compares with a number, not with true",
    ),
    (
        SUBSCRIPTION + "    filter: {}\n",
        '6: subscriptions[0].filter: must be an object with at least one field: {"data": {"status": ["paid"]}}',
    ),
    (
        ENDPOINT + "    headers: {Host: x}\n",
        "5: endpoints[0].headers.Host: is set by the platform or by HTTP itself: leave it out",
    ),
    (
        ENDPOINT + "    headers: {'X Y': x}\n",
        "5: endpoints[0].headers.X Y: is no valid name of a header: use 1 to 128 letters, digits or `-`",
    ),
    (
        ENDPOINT + "    headers: {X-A: 1}\n",
        "5: endpoints[0].headers.X-A: must be text, but is a number: put it in quotes",
    ),
    (
        ENDPOINT + "    headers: {X-A: 'aé'}\n",
        "5: endpoints[0].headers.X-A: its value must be printable ASCII, not empty, without spaces at its ends",
    ),
    (
        ENDPOINT + "    auth: {kind: beerer, secret: x}\n",
        "5: endpoints[0].auth.kind: must be one of none, basic, bearer, api_key, oauth2; did you mean bearer?",
    ),
    (
        ENDPOINT + "    auth: {kind: bearer}\n",
        "5: endpoints[0].auth: kind bearer requires secret: add secret, or choose another kind",
    ),
    (
        ENDPOINT + f"    auth: {{kind: bearer, secret: {'x' * 8164}}}\n",
        "5: endpoints[0].auth.secret: must have at most 8163 characters",
    ),
    (
        ENDPOINT + "    auth: {kind: bearer, secret: ''}\n",
        "5: endpoints[0].auth.secret: must have 1 or more characters",
    ),
    (
        ENDPOINT + "    auth: {kind: none, secret: x}\n",
        "5: endpoints[0].auth: kind none does not allow secret: remove what is not allowed, or choose another kind",
    ),
    (
        ENDPOINT + "    auth: {kind: basic, username: 'a:b', secret: x}\n",
        "5: endpoints[0].auth.username: must not contain a colon, because HTTP ends the user name there",
    ),
    (
        ENDPOINT + "    signing_secrets: [hunter2]\n",
        "5: endpoints[0].signing_secrets[0]: does not begin with whsec_ or whsk_: write whsec_ and 24 to 64 random bytes in base64",
    ),
    (
        ENDPOINT + "    signing_secrets: ['whsec_hunter2!']\n",
        "5: endpoints[0].signing_secrets[0]: is not base64 after whsec_: write the bytes of the key in base64",
    ),
    (
        ENDPOINT + "    signing_secrets: [whsec_aHVudGVyMg==]\n",
        "5: endpoints[0].signing_secrets[0]: is an HMAC key of 7 bytes; 24 to 64 (before base64) are needed: use another key, such as 32 random bytes",
    ),
    (
        ENDPOINT + "    mode: batched\n",
        "5: endpoints[0].mode: must be one of direct, batch; did you mean batch?",
    ),
    (
        ENDPOINT + "    status: false\n",
        "5: endpoints[0].status: must be one of active, paused, disabled, but is true or false: put it in quotes",
    ),
    (
        ENDPOINT + "    max_in_flight: 0\n",
        "5: endpoints[0].max_in_flight: must be at least 1",
    ),
    (
        ENDPOINT + "    max_per_second: fast\n",
        "5: endpoints[0].max_per_second: must be a number, but is other text",
    ),
    (
        ENDPOINT + "    mode: batch\n    batch: {max_events: 10001}\n",
        "6: endpoints[0].batch.max_events: must be at most 10000",
    ),
    (
        ENDPOINT + "    batch: {max_events: 5}\n",
        "2: endpoints[0]: batch is allowed only with `mode: batch`: remove batch, or set mode to batch",
    ),
    (
        ENDPOINT + "    mode: batch\n    batch: {max_wait_s: 0}\n",
        "6: endpoints[0].batch.max_wait_s: must be more than 0",
    ),
    (
        ENDPOINT + "    retry: {schedule_s: [5, -1]}\n",
        "5: endpoints[0].retry.schedule_s[1]: must be more than 0",
    ),
    (
        ENDPOINT + "    retry: {schedule_s: 5}\n",
        "5: endpoints[0].retry.schedule_s: must be a list, but is a number",
    ),
    (
        ENDPOINT + "    retry: {timeout_s: 61}\n",
        "5: endpoints[0].retry.timeout_s: must be at most 60",
    ),
    (
        ENDPOINT + "    order_by: a..b\n",
        "5: endpoints[0].order_by: must be the path of a payload field, such as account.number: names joined by dots, without spaces",
    ),
    (
        ENDPOINT + "  - id: ep1\n    customer: c1\n    url: https://example.com/2\n",
        "5: endpoints[1].id: ep1 is already used at endpoints[0]: choose another id",
    ),
    (
        SUBSCRIPTION + "    tenants: [a]\n",
        "2: subscriptions[0]: has everything: true beside tenants or sub_tenants: remove one of the two",
    ),
    (
        SUBSCRIPTION.replace("    everything: true\n", ""),
        "2: subscriptions[0]: does not say whose events: add tenants or sub_tenants, or everything: true",
    ),
    (
        SUBSCRIPTION.replace("    everything: true\n", "    tenants: tenant-1\n"),
        "5: subscriptions[0].tenants: must be a list, but is text",
    ),
    (
        SUBSCRIPTION.replace("    everything: true\n", "    sub_tenants: [a]\n"),
        "5: subscriptions[0].sub_tenants: must be a mapping (`name: value`), but is a list",
    ),
    (
        SUBSCRIPTION.replace("    everything: true\n", "    sub_tenants: {a: []}\n"),
        "5: subscriptions[0].sub_tenants.a: must have at least 1 entries",
    ),
    (
        "event_types:\n  - id: a\n    json_schema: {type: strin}\n",
        "3: event_types[0].json_schema.type: must be one of array, boolean, integer, null, number, object, string, or a list of them",
    ),
    (
        "event_types:\n  - id: a\n    json_schema: {type: string}\n    examples: [1]\n",
        "4: event_types[0].examples[0]: 1 is not of type 'string'",
    ),
    (
        "event_types:\n  - id: order.*\n",
        "2: event_types[0].id: is not a valid id: use 1 to 128 letters, digits, `_` `.` `:` or `-`, and begin with a letter or digit",
    ),
    (
        ENDPOINT + "    tls: {certificate: x}\n",
        "5: endpoints[0].tls: certificate and key must be given together: add the missing one, or remove both",
    ),
    (
        ENDPOINT + "    tls: {authorities: x}\n",
        "5: endpoints[0].tls.authorities: is not a list of PEM certificates in ASCII: paste each from -----BEGIN to -----END CERTIFICATE-----",
    ),
    (
        "tenants:\n  - id: fanout\n",
        "2: tenants[0].id: fanout is reserved for the platform: choose another id",
    ),
    (
        ENDPOINT + "    auth: {kind: api_key, header: X_Key, secret: x}\n",
        "5: endpoints[0].auth.header: must be a header name: 1 to 128 letters, digits or `-`",
    ),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_a_mistake_is_named_by_line_and_in_words_of_its_author(text, said):
    with pytest.raises(errors.RegistrationError) as refused:
        manifest.load(text, GUARD, "f.yaml")
    assert str(refused.value).removeprefix("f.yaml:").strip() == said
    assert "hunter2" not in repr(refused.value)


def test_no_message_has_words_of_a_library():
    """Regression: authors of YAML got regular expressions, names of constraints and Python types in messages."""
    for _, said in MISTAKES:
        assert not [
            word
            for word in ("^[", "Input should", "_check", "Extra inputs", "NoneType", "Traceback", "pydantic")
            if word in said
        ]


def test_all_mistakes_are_listed_at_once_in_order_of_lines():
    """Regression: only the first mistake was listed, so a manifest with ten mistakes was applied ten times."""
    text = "subscriptions:\n  - {id: s1, endpoint: ep1, event_type: order*, everything: true}\n"
    text += "  - {id: s2, endpoint: ep1, event_type: order, everything: true, filter: {data: {a: [{prefx: x}]}}}\n"
    text += (
        "endpoints:\n  - id: ep1\n    customer: c1\n    url: http://example.com/\n    headers: {Host: x}\n    modus: batch\n"
    )
    text += "  - {id: ep2, customer: c1, url: 'https://10.0.0.1/', headers: {Host: x}}\n  - {id: ep2, customer: c1, url: 'https://a.example/'}\n"
    with pytest.raises(errors.ManifestRefused) as refused:
        manifest.load(text, GUARD, "f.yaml")
    assert [(mistake.line, mistake.path) for mistake in refused.value.found] == [
        (2, "subscriptions[0].event_type"),
        (3, "subscriptions[1].filter.data.a[0].prefx"),
        (9, "endpoints[0].modus"),
        (10, "endpoints[1].url"),
        (10, "endpoints[1].headers.Host"),
        (11, "endpoints[2].id"),
    ]
    assert str(refused.value).startswith(
        "6 mistakes, nothing was changed:\n  f.yaml:2: subscriptions[0].event_type: is not a valid event type"
    )
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_a_message_lists_a_bounded_number_of_mistakes():
    with pytest.raises(errors.ManifestRefused) as refused:
        manifest.load("tenants:\n" + "  - id: a b\n" * 300, GUARD, "f.yaml")
    assert len(str(refused.value).splitlines()) == 102
    assert str(refused.value).endswith("… and 200 more")


@pytest.mark.parametrize("pattern", mistakes.WORDS)
def test_every_pattern_has_a_message_without_regular_expressions(pattern):
    assert not set("^$[]\\") & set(mistakes.WORDS[pattern].replace("`\\`", ""))
