"""A token is accepted only with a signature of the provider, for this API, at its time, and with a mapped claim."""

import asyncio
import contextlib
import hmac
import time

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwe, jwk

from delivery.config import oidc_settings
from subscriptions_db.api.admission import admission
from subscriptions_db.api.contract import problems
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.api.oidc import provider_keys, tokens
from tests.support.tokens import ADMINS, AUDIENCE, CANARY, Issuer, part

ISSUER = Issuer()
ISSUER.add("curve", "EC", "P-256")
ISSUER.add("large curve", "EC", "P-384")
OTHER = Issuer("https://other.example.com")
CONFIG = oidc_settings.OidcSettings(issuer=ISSUER.url, audience=AUDIENCE, scopes={ADMINS: "operator", "ci": "publisher"})


class Clock:
    def __init__(self):
        self.now = time.time()

    def __call__(self):
        return self.now


class Keys(provider_keys.ProviderKeys):
    """The keys of an issuer that was read. Counts the searches for a key, and asks nobody."""

    def __init__(self, issuer=ISSUER):
        super().__init__(CONFIG)
        self.replace(issuer)
        self.searches = 0

    def replace(self, issuer):
        self._keys, self._read_at = provider_keys.signing_keys(issuer.key_set()), self._clock()
        self.version += 1

    async def read(self):
        pass

    async def find(self, kid, algorithm):
        self.searches += 1
        return await super().find(kid, algorithm)


KEYS = Keys()


def verify(text, *, config=CONFIG, keys=KEYS, now=time.time):
    return asyncio.run(tokens.TokenVerifier(config, keys, now=now).verified(text))


def refusal(text, **given):
    with pytest.raises(problems.Refused) as refused:
        verify(text, **given)
    shown = refused.value.problem.model_dump_json()
    assert CANARY not in shown
    assert len(text) < 20 or text not in shown
    assert part({"canary": CANARY})[4:-4] not in shown
    if refused.value.problem.status == 401:
        assert refused.value.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    return refused.value.problem.status, refused.value.problem.detail


@pytest.mark.parametrize(
    ("kid", "algorithm"),
    [("first", "RS256"), ("first", "RS512"), ("first", "PS256"), ("curve", "ES256"), ("large curve", "ES384")],
)
def test_a_signed_token_names_its_subject_and_scope(kid, algorithm):
    assert verify(ISSUER.token(kid, algorithm)) == Principal("oidc:ann", None, Scope.OPERATOR)


def test_a_token_of_another_type_of_access_token_is_accepted():
    assert verify(ISSUER.token(header={"typ": "at+jwt"})).scope is Scope.OPERATOR
    assert verify(ISSUER.token(header={"typ": "application/at+JWT", "nonce": "n"})).scope is Scope.OPERATOR


def unsigned(algorithm, **fields):
    return f"{part({'alg': algorithm, 'kid': 'first', 'typ': 'JWT'})}.{part(ISSUER.claims(**fields))}."


def signed_by_public_key():
    """Return a token with an HMAC whose secret is the public key, as PEM, which anybody can know."""
    pem = ISSUER.keys["first"].public_key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    text = f"{part({'alg': 'HS256', 'kid': 'first'})}.{part(ISSUER.claims())}"
    return f"{text}.{part(hmac.new(pem, text.encode(), 'sha256').digest())}"


def encrypted(payload):
    header = {"alg": "RSA-OAEP", "enc": "A128GCM", "kid": "first", "cty": "JWT"}
    public = {name: value for name, value in ISSUER.keys["first"].as_dict(private=False).items() if name != "use"}
    return jwe.encrypt_compact(header, payload, jwk.RSAKey.import_key(public), algorithms=["RSA-OAEP", "A128GCM"])


def with_key_of_its_own():
    own = Issuer(ISSUER.url)
    own.add("curve", "EC", "P-256")
    header = {"jwk": own.keys["curve"].as_dict(private=False), "jku": "https://evil.example.com/keys"}
    return own.token("curve", "ES256", header)


def changed(text):
    head, _, signature = text.split(".")
    return f"{head}.{part(ISSUER.claims(sub='eve'))}.{signature}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no signed JWT"),
        ("no token", "no signed JWT"),
        ("a.b.c", "no signed JWT"),
        ("fk_abcdefghijkl", "no signed JWT"),
        ("ü.ü.ü", "no JWT"),
        ("\udcff.a.b", "no JWT"),
        (unsigned("none"), "algorithm"),
        (unsigned("None"), "algorithm"),
        (unsigned(["RS256"]), "algorithm"),
        (unsigned("RS256"), "not signed"),
        (signed_by_public_key(), "algorithm"),
        (ISSUER.token(header={"crit": ["b64"], "b64": True}), "crit or b64"),
        (OTHER.token(), "not signed"),
        (with_key_of_its_own(), "not signed"),
        (changed(ISSUER.token()), "not signed"),
        (ISSUER.token(header={"kid": "of-nobody"}), "not signed"),
        (ISSUER.token("curve", "ES256", {"kid": "large curve"}), "not signed"),
        (ISSUER.token("first", "RS256", {"kid": "curve"}), "not signed"),
        (encrypted(ISSUER.token()), "no signed JWT"),
        (ISSUER.token(padding="x" * 20_000), "too large"),
        (ISSUER.token(header={"typ": "logout+jwt"}), "no access token"),
        (ISSUER.token(iss=OTHER.url), "the claim iss of the token is not valid here"),
        (ISSUER.token(iss=None), "lacks the claim iss"),
        (ISSUER.token(aud="another-application"), "the claim aud of the token is not valid here"),
        (ISSUER.token(aud=None), "lacks the claim aud"),
        (ISSUER.token(aud=[]), "aud"),
        (ISSUER.token(aud={"fanout": 1}), "aud"),
        (ISSUER.token(exp=None), "lacks the claim exp"),
        (ISSUER.token(exp="tomorrow"), "exp"),
        (ISSUER.token(exp=True), "exp"),
        (ISSUER.token(exp=int(time.time()) - 3600), "expired"),
        (ISSUER.token(nbf=int(time.time()) + 3600), "the claim nbf of the token is later than now"),
        (ISSUER.token(iat=int(time.time()) + 3600), "the claim iat of the token is later than now"),
        (ISSUER.token(sub=None), "sub"),
        (ISSUER.token(sub=""), "sub"),
        (ISSUER.token(sub="a" * 256), "sub"),
        (ISSUER.token(sub="ann\x1b[2J\n"), "sub"),
        (ISSUER.token(sub=["ann"]), "sub"),
        (ISSUER.token(jti=7), "claim jti"),
    ],
)  # fmt: skip
def test_a_forged_or_unfit_token_is_refused(text, said):
    status, detail = refusal(text)
    assert status == 401
    assert said in detail


@pytest.mark.parametrize(
    "groups", [None, [], ["others"], [ADMINS + "s"], {"fanout-admins": 1}, 7, [[ADMINS]], "x-fanout-admins"]
)
def test_a_token_without_a_mapped_value_is_forbidden(groups):
    assert refusal(ISSUER.token(groups=groups))[0] == 403


@pytest.mark.parametrize(
    ("claim", "fields"),
    [
        ("groups", {"groups": ADMINS}),
        ("scope", {"scope": f"openid {ADMINS} email"}),
        ("realm_access.roles", {"realm_access": {"roles": ["others", ADMINS]}}),
        ("https://example.com/roles", {"https://example.com/roles": [ADMINS]}),
    ],
)
def test_the_claim_is_a_list_or_words_by_name_or_path(claim, fields):
    config = CONFIG.model_copy(update={"claim": claim})
    assert verify(ISSUER.token(**{"groups": None} | fields), config=config).scope is Scope.OPERATOR


def test_the_first_entry_of_the_settings_decides_the_scope():
    both = ISSUER.token(groups=["ci", ADMINS])
    assert verify(both).scope is Scope.OPERATOR
    assert verify(ISSUER.token(groups=["ci"])).scope is Scope.PUBLISHER
    turned = CONFIG.model_copy(update={"scopes": {"ci": "publisher", ADMINS: "operator"}})
    assert verify(both, config=turned).scope is Scope.PUBLISHER


def test_another_claim_may_name_the_subject():
    config = CONFIG.model_copy(update={"subject_claim": "email"})
    assert verify(ISSUER.token(email="ann@example.com"), config=config).key_id == "oidc:ann@example.com"


def test_clocks_may_differ_by_the_leeway():
    now = int(time.time())
    assert verify(ISSUER.token(exp=now), now=lambda: now + 29).key_id == "oidc:ann"
    assert verify(ISSUER.token(nbf=now + 30), now=lambda: now).key_id == "oidc:ann"
    assert refusal(ISSUER.token(exp=now), now=lambda: now + 30)[1] == "the token is expired: get a new one from the provider"


def test_a_verified_token_is_known_until_it_expires():
    clock, keys = Clock(), Keys()
    verifier = tokens.TokenVerifier(CONFIG, keys, now=clock)
    text = ISSUER.token(exp=int(clock.now) + 300)
    assert verifier.known(text) is None
    principal = asyncio.run(verifier.verified(text))
    assert verifier.known(text) == principal
    clock.now += 331
    assert verifier.known(text) is None


def test_a_known_token_is_verified_again_when_the_keys_change():
    keys = Keys()
    verifier = tokens.TokenVerifier(CONFIG, keys)
    text = ISSUER.token()
    asyncio.run(verifier.verified(text))
    keys.replace(Issuer(ISSUER.url))  # the provider has withdrawn the key
    assert verifier.known(text) is None
    with pytest.raises(problems.Refused):
        asyncio.run(verifier.verified(text))


def test_a_token_that_lives_very_long_is_no_error():
    for exp in (10**18, 1e300):
        assert verify(ISSUER.token(exp=exp)).key_id == "oidc:ann"


def test_no_key_is_looked_for_before_the_form_of_the_token_is_right():
    keys = Keys()
    for text in ("x", unsigned("none"), signed_by_public_key(), encrypted(b"x")):
        refusal(text, keys=keys)
    assert keys.searches == 0


async def no_key(_):
    return None


def test_unknown_tokens_above_their_rate_get_429():
    """A flood of invented tokens takes little CPU, and does not lock out a token that was verified before."""
    admitted = admission.Admission(no_key, max_per_s=100, clock=lambda: 1.0, tokens=tokens.TokenVerifier(CONFIG, KEYS))

    def status(text):
        try:
            return asyncio.run(admitted.authenticate(f"Bearer {text}")).key_id
        except problems.Refused as exc:
            return exc.problem.status

    good, burst = ISSUER.token(), int(admission.MAX_UNKNOWN_TOKENS_PER_S * admission.BURST_SHARE)
    assert status(good) == "oidc:ann"
    assert [status(f"invented.{number}.token") for number in range(burst)] == [401] * (burst - 1) + [429]
    assert status(good) == "oidc:ann"
    assert status("fk_abcdefghijkl_" + "x" * 43) == 401  # API keys have a limit of their own


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4))


@given(header=JSON, claims=JSON)
def test_any_unsigned_content_is_refused_without_an_error(header, claims):
    assert refusal(f"{part(header)}.{part(claims)}.{part(b'signature')}")[0] == 401


@given(st.dictionaries(st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "groups", "jti", "cnf"]), JSON, min_size=1))
def test_any_signed_claims_are_answered(fields):
    """A provider that is ours may have a mistake: the answer is a principal or a refusal."""
    text = ISSUER.token("curve", "ES256", **fields)
    with contextlib.suppress(problems.Refused):
        assert verify(text).scope in {Scope.OPERATOR, Scope.PUBLISHER}


@given(st.text(max_size=300))
def test_any_text_is_refused_without_an_error(text):
    assert refusal(text)[0] == 401
