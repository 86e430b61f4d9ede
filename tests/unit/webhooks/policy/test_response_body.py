"""The beginning of a response's body is kept for the customer, bounded and without credentials."""

import base64
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.webhooks.policy import credentials, response_body

SECRET = "hunter2hunter2"


def kept(body, *, headers=(), secrets=(), max_bytes=response_body.MAX_BYTES):
    return response_body.kept(body, headers, secrets, max_bytes)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"error": "amount is missing"}', '{"error": "amount is missing"}'),
        (b"a\r\n\tb", "a\r\n\tb"),
        (b"caf\xc3\xa9 \xff\x00", "café \ufffd\ufffd"),
        (b"Authorization: Bearer abc.def\nhost: x", "Authorization: ***\nhost: x"),
        (b"Authorization: Digest username=a, response=b", "Authorization: ***"),
        (b"set-cookie: a=b; path=/", "set-cookie: ***"),
        (b'{"Cookie": "a=b; c=d", "x": 1}', '{"Cookie": ***, "x": 1}'),
        (b'{"access_token": "abc", "x": 1}', '{"access_token": ***, "x": 1}'),
        (b'"{\\"password\\":\\"abc\\"}"', '"{\\"password\\":***}"'),
        (b"password=abc&user=ann", "password=***&user=ann"),
        (b"x-api-key: abc next", "x-api-key: *** next"),
        (b"secret='a b' y", "secret=*** y"),
        (b"no Basic YW5uOmh1bnRlcjI= here", "no Basic *** here"),
        (b"https://ann:pw@host/x", "https://***@host/x"),
        (b"whsec_abcdef and fk_abcdefghijkl_xyz", "*** and ***"),
        (b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.c2ln end", "*** end"),
        (b"got v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=", "got ***"),
        (b'{"token": "cut off', '{"token": ***'),
        (b'{"X-Api-Key":["abcd1234efgh"],"x":1}', '{"X-Api-Key":***,"x":1}'),
        (b'{"Set-Cookie":["sid=1; path=/", "b=2"],"x":1}', '{"Set-Cookie":***,"x":1}'),
        (b'{"Cookie": [\n  "a=b"\n], "x": 1}', '{"Cookie": ***, "x": 1}'),
        (b"map[Cookie:[a=b c] X-Api-Key:[abc def] Host:[h]]", "map[Cookie:*** X-Api-Key:*** Host:[h]]"),
        (b'[["x-api-key","abcd"],["host","h"]]', '[["x-api-key",***],["host","h"]]'),
        (b'["x-api-key","abcd","host","h"]', '["x-api-key",***,"host","h"]'),
        (b"[(b'Cookie', b'a=b'), (b'host', b'h')]", "[(b'Cookie', ***), (b'host', b'h')]"),
        (b'{"name":"X-Api-Key","value":"abcd","x":1}', '{"name":"X-Api-Key","value":***,"x":1}'),
        (b'{"key":"X-Api-Key","value":"abcd","x":1}', '{"key":***,"value":***,"x":1}'),
        (b'<input name="csrf_token" value="abc"/>', '<input name="csrf_token" value=***/>'),
        (b"<password>abc d</password><user>ann</user>", "<password>***</password><user>ann</user>"),
        (b'<w:Password Type="u#PasswordText">abc</w:Password>', '<w:Password Type="u#PasswordText">***</w:Password>'),
        (b"<token><![CDATA[abc]]></token>", "<token>***</token>"),
        (b'password: "a\\"b rest" x', "password: *** x"),
        (b"password: 'a\\'b rest' x", "password: *** x"),
        (b'"{\\"token\\":\\"a\\\\\\"b\\",\\"x\\":1}"', '"{\\"token\\":***,\\"x\\":1}"'),
        (b"{&quot;token&quot;:&quot;a&amp;b&quot;,&quot;x&quot;:1}", "{&quot;token&quot;:***,&quot;x&quot;:1}"),
        (b'{"X-Api-Key"=>"abc", :x=>1}', '{"X-Api-Key"=>***, :x=>1}'),
        (b"[X-Api-Key] => abc\n[Host] => h", "[X-Api-Key] => ***\n[Host] => h"),
        (b'Authorization: Digest username="ann", response="b"\nx', "Authorization: ***\nx"),
    ],
)
def test_a_text_that_looks_like_a_credential_is_replaced(body, shown):
    assert kept(body) == shown


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":"invalid_token","error_description":"The token expired"}',
        b'{"missing":["amount","currency"],"key of":"order"}',
        b"<h1>Bad token</h1><p>Look at https://example.com/help</p>",
        b"mail me@example.com, or see https://example.com/",
    ],
)
def test_an_ordinary_refusal_is_kept_as_it_is(body):
    assert kept(body) == body.decode()


ESCAPED = 'a"b/c\u00e9&d<e f'


@pytest.mark.parametrize(
    "form",
    [
        ESCAPED,
        'A"B/C\u00e9&D<E F',
        r"a\"b/c\u00e9&d<e f",
        r"a\"b/cé&d<e f",
        r"a\"b\/c\u00E9&d<e f",
        r"a\"b/cé\u0026d\u003ce f",
        "a%22b%2Fc%C3%A9%26d%3Ce%20f",
        "a%22b%2fc%c3%a9%26d%3ce+f",
        "a%22b/c%C3%A9%26d%3Ce%20f",
        "a&quot;b/cé&amp;d&lt;e f",
        "a&#34;b/cé&amp;d&lt;e f",
    ],
)
def test_a_secret_of_the_request_is_replaced_in_each_form(form):
    """Receivers repeat headers in JSON, URLs and HTML."""
    assert kept(f"got {form}.".encode(), secrets=[ESCAPED]) == "got ***."


TOKEN = """a+b=c/d'e"f`g&h=="""
BACKSLASH = 'pa\\ss"word'


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(r"a\u002Bb=c/d\u0027e\u0022f\u0060g\u0026h==", id="System.Text.Json"),
        pytest.param(r"a+b\u003dc/d\u0027e\"f`g\u0026h\u003d\u003d", id="Gson"),
        pytest.param(r"a+b=c\/d\u0027e\u0022f`g\u0026h==", id="PHP"),
        pytest.param("a&#43;b=c/d&#39;e&#34;f`g&amp;h==", id="html/template of Go"),
        pytest.param("a+b&#x3D;c/d&#x27;e&quot;f&#x60;g&amp;h&#x3D;&#x3D;", id="Handlebars"),
        pytest.param("a&#x2B;b=c/d&#x27;e&quot;f&#x60;g&amp;h==", id="HtmlEncoder of .NET"),
        pytest.param("a&#043;b&#061;c&#x2f;d&#x027;e&#x22;f&#096;g&#38;h&#x3d;&#x003d;", id="leading zeros"),
        pytest.param("".join(rf"\u{ord(char):04x}" for char in TOKEN), id="each character"),
    ],
)
def test_a_secret_is_replaced_whatever_its_receiver_escapes(form):
    """Regression: `+`, `=` and quotes of a token stayed readable where a library escapes them, which many do."""
    assert kept(f"<b>can&#39;t</b> \\u0020 {form}.".encode(), secrets=[TOKEN]) == "<b>can&#39;t</b> \\u0020 ***."


def test_a_secret_with_a_backslash_and_an_escaped_quote_is_replaced():
    assert kept(rb'{"got":"pa\\ss\u0022word"}', secrets=[BACKSLASH]) == '{"got":"***"}'


@pytest.mark.parametrize("escape", [r"\u002b", "&#43;", "&#x002b;"])
@pytest.mark.parametrize("before", [0, 1, 63])
def test_an_escaped_secret_that_the_bound_cuts_is_replaced(before, escape):
    found = kept(b"x" * before + escape.encode() * 100, secrets=["+" * 100], max_bytes=64)
    assert found == ("x" * before + "***")[:64]


def test_a_body_with_too_many_places_of_secrets_is_replaced():
    """Regression: headers with equal beginnings took 15 ms of the event loop for a body that repeats the beginning."""
    beginning = "abcd" * 16
    secrets = [f"{beginning}{number}" for number in range(32)]
    body = f"{beginning} ".encode() * 15
    assert kept(body[: len(body) // 3], secrets=secrets) == "*** " * 5
    assert kept(body, secrets=secrets) == "***"


def test_secrets_of_the_request_are_replaced_wherever_they_stand():
    encoded = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    assert kept(f"got {SECRET}, {encoded}.".encode(), secrets=[SECRET, encoded, "abc"]) == "got ***, ***."


@given(st.integers(0, len(SECRET) + 2))
def test_a_secret_that_the_bound_cuts_is_replaced(before):
    body = b"x" * (64 - before) + SECRET.encode() + b"y"
    found = kept(body, secrets=[SECRET], max_bytes=64)
    assert len(found) <= 64
    assert not set(SECRET) & set(found)


NO_WORDS = st.lists(st.sampled_from([0, 10, 32, 44, 64, 0x7F, 0x80, 0xC3, 0xE2, 0x82, 0xAC, 0xF0, 0xFF]), max_size=40).map(
    bytes
)


@given(NO_WORDS, NO_WORDS)
def test_a_secret_is_replaced_between_any_bytes(before, behind):
    found = kept(before + SECRET.encode() + behind, secrets=[SECRET])
    assert found == f"{kept(before)}***{kept(behind)}"


def test_a_body_of_too_many_words_of_credentials_is_replaced():
    """Each of these words takes time on the event loop that all customers share."""
    most = "a key " * credentials.MAX_WORDS
    assert kept(f"{most}end".encode()) == f"{most}end"
    assert kept(f"{most}key".encode()) == "***"


@pytest.mark.parametrize("before", [0, 1, 960, 1020, 1023])
def test_a_long_secret_that_the_bound_cuts_is_replaced(before):
    """The search reads a fixed number of bytes beyond the bound, and a header value has up to 4,096 characters."""
    long = "".join(f"{number:04x}" for number in range(1024))
    found = kept(b"." * before + long.encode(), secrets=[long])
    assert found == ("." * before + "***")[:1024]


def test_a_secret_behind_others_is_not_cut_in_half():
    """Each replacement made the text shorter, so the cut end of the last secret came within the bound."""
    found = kept((SECRET + " ").encode() * 10, secrets=[SECRET], max_bytes=64)
    assert found == "*** " * 4 + "***"


def test_a_body_with_a_content_encoding_is_not_kept():
    assert kept(b"\x1f\x8b", headers=[(b"Content-Encoding", b"gzip")]) == ""
    assert kept(b"plain", headers=[(b"content-encoding", b"identity")]) == "plain"


@given(st.binary(max_size=3000), st.integers(0, 1024))
def test_any_body_is_kept_within_the_bound(body, max_bytes):
    found = kept(body, max_bytes=max_bytes)
    assert len(found.encode()) <= max_bytes
    assert "\0" not in found


@pytest.mark.parametrize(
    "part",
    [
        b"token=", b'token:"', b"://", b"@://a", b"bearer ", b"key'", b"eyj", b"authorization:", b"secret\\", b"key ",
        b'key","', b'key",\\"', b"token<", b"key </", b"key=[", b"key:['", b"key,value", b"key=a,value=", b"&quot;key",
        b"key=&quot;",
    ],
)  # fmt: skip
def test_no_body_takes_quadratic_time(part):
    """16 KiB take milliseconds. In quadratic time they took seconds."""
    body = part * (16 * 1024 // len(part))
    began = time.process_time()
    kept(body, secrets=["x" * 15_000], max_bytes=len(body))
    assert time.process_time() - began < 1
