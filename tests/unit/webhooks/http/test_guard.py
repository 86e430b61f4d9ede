"""The guard refuses every form of an internal address, with the same text for all."""

import ipaddress
import pickle

import pytest
import yarl
from hypothesis import example, given
from hypothesis import strategies as st

from delivery import errors
from delivery.webhooks.http import guard
from delivery.webhooks.sending import request
from tests.support import addresses, builders

GUARD = guard.Guard()


@pytest.mark.parametrize("address", addresses.INSIDE)
def test_an_address_that_leads_inside_is_not_allowed(address):
    assert not GUARD.is_allowed(address)
    with pytest.raises(errors.TargetRefused, match="the address is not allowed"):
        GUARD.check_url(addresses.url_of(address))


@pytest.mark.parametrize("host", addresses.NAMES)
def test_a_name_that_leads_inside_is_refused(host):
    with pytest.raises(errors.TargetRefused, match="the address is not allowed"):
        GUARD.check_url(addresses.url_of(host))


def test_no_refusal_tells_one_address_from_another():
    """With a text for each address, a customer could use the guard to scan our network."""
    said = set()
    for host in [*addresses.INSIDE, *addresses.NAMES]:
        with pytest.raises(errors.TargetRefused) as refused:
            GUARD.check_url(addresses.url_of(host))
        said.add(str(refused.value))
    for address in addresses.INSIDE:
        with pytest.raises(guard.BlockedSocket) as blocked:
            GUARD.socket_factory((2, 1, 6, "", (address, 80)))
        said.add(str(blocked.value))
    assert said == {"url: the address is not allowed: an endpoint is a public https address", "the address is not allowed"}


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/hook",
        "HTTPS://EXAMPLE.com",
        "https://example.com?a[]=1",
        "https://example.com:/",
        "https://example.com:443/a@b:c",
        "https://hooks.example.com:8443/a%20b?c=d&e=%2F",
        "https://93.184.216.34/",
        "https://[2606:2800:220:1::1]/",
        "https://[64:ff9b::5db8:d822]/",  # NAT64 of 93.184.216.34
        "https://xn--bcher-kva.example/",
        "https://my_host.example.com/",
    ],
)
def test_a_public_https_address_is_allowed(url):
    GUARD.check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "unix:///var/run/docker.sock",
        "data:text/plain,x",
        "//example.com/",
        "example.com",
        "https:///path",
        "https://",
        "https://user:pass@example.com/",
        "https://user@example.com/",
        "https://@example.com/",
        "https://:@example.com/",
        "https://[2606:2800:220:1::1]:@/",
        "https://example.com@127.0.0.1/",
        "https://example.com#@127.0.0.1/",
        "https://example.com/#fragment",
        "https://example.com\\@127.0.0.1/",
        "https://example.com/\tx",
        "https://example.com/\r\nx",
        "https://example.com/ x",
        "https://exa\u00admple.com/",
        "https://①②⑦.⓪.⓪.①/",
        "https://１２７.0.0.1/",
        "https://bücher.example/",
        "https://[::1%25eth0]/",
        "https://[fe80::1%eth0]/",
        "https://[::1/",
        "https://[]/",
        "https://[93.184.216.34]/",
        "https://[v1.example.com]/",
        "https://[2606:2800:220:1::1]x/",
        "https://x[2606:2800:220:1::1]/",
        "https://2606:2800:220:1::1/",
        "https://%31%32%37.0.0.1/",
        "https:example.com/",
        "https://example.com:0/",
        "https://example.com:65536/",
        "https://example.com:x/",
        "https://example.com:+443/",
        "https://example.com:4_43/",
        "https://example.com:-443/",
        "https://example.com:443:80/",
        "https://:443/",
        *(f"https://example.com:{port}/" for port in (22, 25, 2375, 5432, 6379, 9092)),
        "https://example.com/" + "x" * 2048,
    ],
)
def test_a_url_that_is_not_plain_public_https_is_refused(url):
    with pytest.raises(errors.TargetRefused):
        GUARD.check_url(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://example.com/", "must begin with https://"),
        ("https://user:pass@example.com/", "use auth"),
        ("https://example.com/#fragment", "fragment"),
        ("https:///path", "has no host"),
        ("https://example.com:22/", "80, 443, 8080, 8443"),
    ],
)
def test_a_refusal_says_what_to_change(url, words):
    with pytest.raises(errors.TargetRefused, match=words):
        GUARD.check_url(url)


@pytest.mark.parametrize("port", ["0", "65536", "99999", "100000"])
def test_an_invalid_port_is_refused_even_if_any_is_allowed(port):
    with pytest.raises(errors.TargetRefused):
        guard.Guard(allow_ports=()).check_url(f"https://example.com:{port}/")


EDGES = [
    "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0", "168.63.129.15",
    "168.63.129.17", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "191.255.255.255", "192.0.1.0",
    "192.0.3.0", "192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0",
    "198.51.99.255", "198.51.101.0", "203.0.112.255", "203.0.114.0", "223.255.255.255",
    "2000::", "2001:200::", "2001:db7:ffff::", "2001:db9::", "2003::", "3ffe:ffff::", "3fff:1000::",
]  # fmt: skip


@pytest.mark.parametrize("address", EDGES)
def test_neighbours_of_a_denied_network_are_public(address):
    assert GUARD.is_allowed(address)


@pytest.mark.parametrize("address", ["", "example.com", "1", "127.1", "0x7f.0.0.1", "2606:2800:220:1::1%eth0", "/var/run/x"])
def test_only_a_plain_ip_address_is_allowed(address):
    assert not GUARD.is_allowed(address)


NOT_PUBLIC = [
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
    "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "255.255.255.255/32",
    "::/128", "::1/128", "::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/32",
    "2001:10::/28", "2001:20::/28", "2001::/23", "2001:db8::/32", "3fff::/20", "4000::/3", "5f00::/16", "8000::/2", "fc00::/7",
    "fe80::/10", "fec0::/10", "ff00::/8",
]  # fmt: skip
"""Networks of IANA's registries of special-purpose addresses, so that the guard is not tested against itself."""


@st.composite
def addresses_that_are_not_public(draw):
    network = ipaddress.ip_network(draw(st.sampled_from(NOT_PUBLIC)))
    return network[draw(st.integers(0, network.num_addresses - 1))]


@given(addresses_that_are_not_public())
def test_no_form_of_a_private_address_is_allowed(address):
    assert not GUARD.is_allowed(str(address))
    if address.version == 4:
        number = int(address)
        mapped, compatible, translated = 0xFFFF << 32 | number, number, 0xFFFF << 48 | number
        nat64, six_to_four, teredo = (
            0x64FF9B << 96 | number,
            0x2002 << 112 | number << 80,
            0x20010000 << 96 | number ^ 0xFFFFFFFF,
        )
        for disguise in (mapped, compatible, translated, nat64, six_to_four, teredo):
            assert not GUARD.is_allowed(str(ipaddress.IPv6Address(disguise)))


HEADS = ["https://", "https://example.com", "https://93.184.216.34", "https://[2606:2800:220:1::1]", "https://example.com:443"]


@given(st.builds("".join, st.tuples(st.sampled_from(HEADS), st.text("@:[]%.?#/&=+,'a0x1-_~!$*()v;", max_size=12))))
@example("https://[2606:2800:220:1::1]x/")
@example("https://[2606:2800:220:1::1]:@/")
def test_the_guard_and_the_client_parse_a_url_alike(url):
    """A URL passed the guard although the other parser raised on it: one customer's endpoint blocked the whole snapshot."""
    try:
        to = request.prepare(builders.endpoint(url=url), GUARD)
    except errors.TargetRefused:
        return
    assert to.url == yarl.URL(url, encoded=True)
    GUARD.check_url(str(to.url.origin()))


@pytest.mark.parametrize("url", ["http://127.0.0.1:9000/", "http://localhost:9000/x", "https://example.com/"])
def test_development_allows_the_named_networks(url):
    guard.Guard(allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=()).check_url(url)


def test_development_allows_nothing_else():
    opened = guard.Guard(allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=())
    for url in ("http://10.0.0.1/", "http://169.254.169.254/", "http://db.internal/"):
        with pytest.raises(errors.TargetRefused):
            opened.check_url(url)


@pytest.mark.parametrize("network", ["localhost", "127.0.0.1/8", "127.0.0.0/33", ""])
def test_an_invalid_network_is_a_settings_error_at_start(network):
    with pytest.raises(errors.SettingsError, match=r"delivery\.allow_networks"):
        guard.Guard(allow_networks=(network,))


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "fd00::1"])
def test_an_allowed_network_is_allowed_in_every_form(address):
    assert guard.Guard(allow_networks=("127.0.0.0/8", "fd00::/8")).is_allowed(address)
    assert not guard.Guard(allow_networks=("10.0.0.0/8",)).is_allowed(address)


def test_the_socket_is_refused_by_its_own_address():
    with pytest.raises(guard.BlockedSocket):
        GUARD.socket_factory((2, 1, 6, "", ("127.0.0.1", 80)))


def test_a_guard_survives_pickling():
    assert pickle.loads(pickle.dumps(GUARD)) == GUARD
    assert hash(GUARD) == hash(guard.Guard())


@pytest.mark.parametrize(
    "name",
    ["Content-Length", "transfer-encoding", "Host", "CONNECTION", "Expect", "Upgrade", "TE", "Trailer", "Keep-Alive",
     "Proxy-Authorization", "Proxy-Connection", "Content-Type", "Content-MD5", "Content-Disposition", "Content-Encoding",
     "User-Agent", "Accept-Encoding", "webhook-id", "Webhook-Signature", "svix-id", "ce-id", ":authority", "x y", "x\r\ny",
     "x:", "", "é", "x" * 129, "Content_Length", "TRANSFER_ENCODING", "webhook_id", "x\0y", "x\ty"],
)  # fmt: skip
def test_a_reserved_header_is_refused(name):
    with pytest.raises(errors.TargetRefused):
        guard.check_headers({name: "value"})


@pytest.mark.parametrize("value", ["k3y\r\nb", "k3y\nb", "k3y\0b", "k3yé", "", " k3y", "k3y ", "k3y" * 1366])
def test_an_invalid_header_value_is_refused_unquoted(value):
    with pytest.raises(errors.TargetRefused) as refused:
        guard.check_headers({"X-Key": value})
    assert refused.value.path == "headers.X-Key"
    assert "k3y" not in str(refused.value)


def test_too_many_headers_are_refused():
    with pytest.raises(errors.TargetRefused):
        guard.check_headers({f"x-{n}": "v" for n in range(33)})


def test_a_plain_header_is_allowed():
    guard.check_headers({"X-Api-Key": "k3y/+=", "Authorization": "Token abc"})
