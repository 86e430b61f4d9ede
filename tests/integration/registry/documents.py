"""Manifests that the tests of the registry register, and the function that registers them."""

import base64

from delivery.payload_form import EndpointPayload
from delivery.registry_model import (
    Auth,
    AuthKind,
    Batching,
    ContentMode,
    DeliveryMode,
    Endpoint,
    EndpointStatus,
    Retrying,
    SignatureScheme,
    SigningKey,
    Tls,
)
from delivery.secret import Secret
from delivery.webhooks.http import guard
from subscriptions_db.manifest import manifest
from subscriptions_db.registration import apply
from tests.support import builders, certificates

GUARD = guard.Guard()
SIGNING = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
DOCUMENT = {
    "tenants": [{"id": 1}, {"id": 2, "sub_tenants": [100, {"id": 200, "name": "two"}]}, {"id": 3, "status": "suspended"}],
    "customers": [{"id": "c1"}],
    "endpoints": [
        {"id": "ep1", "customer": "c1", "url": "https://example.com/1", "signing_secrets": [SIGNING],
         "auth": {"kind": "basic", "username": "ann", "secret": "hunter2"}},
        {"id": "ep2", "customer": "c1", "url": "https://example.com/2"},
    ],
    "subscriptions": [
        {"id": "s1", "endpoint": "ep1", "event_type": "order.*", "everything": True, "except_tenants": [2]},
        {"id": "s2", "endpoint": "ep2", "event_type": "order", "tenants": [1], "sub_tenants": {2: [100]},
         "filter": {"data": {"a": [1]}}, "status": "paused"},
    ],
}  # fmt: skip


ED25519 = "whsk_" + base64.b64encode(b"e" * 32).decode()
CLIENT = certificates.issue("client")
WHOLE = {
    "id": "whole", "customer": "c1", "url": "https://example.com/whole", "mode": "batch", "status": "paused",
    "content_mode": "cloudevents_structured", "payload": "original", "headers": {"X-Team": "billing"},
    "max_in_flight": 4, "max_per_second": 12.5,
    "auth": {"kind": "oauth2", "client_id": "us", "secret": "hunter2", "token_url": "https://login.example.com/",
             "token_scope": "hooks"},
    "tls": {"authorities": certificates.issue("authority").pem, "certificate": CLIENT.pem, "key": CLIENT.key},
    "signing_secrets": [ED25519, SIGNING],
    "batch": {"max_events": 50, "max_wait_s": 7.5, "max_bytes": 65_536, "gzip": True},
    "retry": {"schedule_s": [1, 2.5], "max_age_s": 3600, "timeout_s": 30}, "validation": "cloudevents",
    "description": "Orders", "metadata": {"team": "billing"},
}  # fmt: skip
AS_READ = Endpoint(
    endpoint_id="whole", customer_id="c1", url="https://example.com/whole", mode=DeliveryMode.BATCH,
    status=EndpointStatus.PAUSED, content_mode=ContentMode.CLOUDEVENTS_STRUCTURED,
    payload=EndpointPayload.ORIGINAL, headers=(("X-Team", "billing"),), max_in_flight=4, max_per_second=12.5,
    batching=Batching(max_events=50, max_wait_s=7.5, max_bytes=65_536, is_gzipped=True),
    retrying=Retrying(schedule_s=(1, 2.5), max_age_s=3600, timeout_s=30),
    auth=Auth(kind=AuthKind.OAUTH2, client_id="us", secret=Secret(b"hunter2"), token_url="https://login.example.com/",
              token_scope="hooks"),
    tls=Tls(authorities=certificates.issue("authority").pem, certificate=CLIENT.pem, key=Secret(CLIENT.key.encode())),
    signing_keys=(SigningKey(secret=Secret(b"e" * 32), scheme=SignatureScheme.ED25519), builders.KEY),
)  # fmt: skip
UNREADABLE = ['{"a": ' + "[" * 3000 + "]" * 3000 + "}", '{"a": [1e5000]}']
"""jsonb takes both; Python's parser takes neither."""


def applied(connection, ring, document, **options):
    return apply.apply(connection, manifest.check(document, GUARD), ring, **options)
