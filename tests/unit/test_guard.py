"""What an endpoint may be. Every form of an address that leads inside is refused, all with one text."""

import ipaddress
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery import errors
from delivery.webhooks import guard

GUARD = guard.Guard()
ADDRESSES = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.100.100.200",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "192.88.99.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "168.63.129.16",
    "::1",
    "::",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "2001:db8::1",
    "3fff::1",
    "5f00::1",
    "100::1",
    "100:0:0:1::1",
    "2001::1",
    "2001:10::1",
    "64:ff9b:1::1",
    "::ffff:127.0.0.1",
    "::ffff:a9fe:a9fe",
    "::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::7f00:1",
    "2002:a9fe:a9fe::1",
    "2002:7f00:1::",
    "2002:0a00:0001::5",
]
HOSTS = [
    "localhost",
    "LOCALHOST",
    "api.localhost",
    "printer.local",
    "db.internal",
    "metadata.google.internal",
    "kubernetes.default.svc",
    "api.default.svc.cluster.local",
    "intranet",
    "router.lan",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "127.1",
    "127.0.1",
    "0x7f.1",
    "127.0.0.1.",
    "localhost.",
    "example.com.",
    "1.2.3",
    "017700000001",
    "foo.0x7f",
    "-bad.example.com",
    "exa_mple..com",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_that_leads_inside_is_not_allowed(address):
    assert not GUARD.is_allowed(address)
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(errors.TargetRefused, match="the address is not allowed"):
        GUARD.check_url(f"https://{host}/")


@pytest.mark.parametrize("host", HOSTS)
def test_a_name_that_leads_inside_is_refused_with_the_same_words(host):
    with pytest.raises(errors.TargetRefused, match="the address is not allowed"):
        GUARD.check_url(f"https://{host}/")


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/hook",
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
        "https://example.com:0/",
        "https://example.com:65536/",
        "https://example.com:x/",
        *(f"https://example.com:{port}/" for port in (22, 25, 2375, 5432, 6379, 9092)),
        "https://example.com/" + "x" * 2048,
    ],
)
def test_what_is_no_plain_public_https_url_is_refused(url):
    with pytest.raises(errors.TargetRefused):
        GUARD.check_url(url)


@st.composite
def denied_addresses(draw):
    network = ipaddress.ip_network(draw(st.sampled_from(guard.DENIED)))
    offset = draw(st.integers(0, network.num_addresses - 1))
    return network[offset]


@given(denied_addresses())
def test_every_address_of_every_denied_network_is_refused_in_every_disguise(address):
    assert not GUARD.is_allowed(str(address))
    if address.version == 4:
        number = int(address)
        for disguise in (0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80):
            assert not GUARD.is_allowed(str(ipaddress.IPv6Address(disguise)))


@pytest.mark.parametrize("url", ["http://127.0.0.1:9000/", "http://localhost:9000/x", "https://example.com/"])
def test_development_opens_what_it_names(url):
    guard.Guard(allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=()).check_url(url)


def test_development_opens_nothing_else():
    opened = guard.Guard(allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=())
    for url in ("http://10.0.0.1/", "http://169.254.169.254/", "http://db.internal/"):
        with pytest.raises(errors.TargetRefused):
            opened.check_url(url)


def test_the_socket_is_refused_for_the_address_that_it_would_reach():
    with pytest.raises(guard.BlockedSocket):
        GUARD.socket_factory((2, 1, 6, "", ("127.0.0.1", 80)))


def test_a_guard_travels_to_the_executors():
    assert pickle.loads(pickle.dumps(GUARD)) == GUARD
    assert hash(GUARD) == hash(guard.Guard())


@pytest.mark.parametrize(
    "name",
    ["Content-Length", "transfer-encoding", "Host", "CONNECTION", "Expect", "Upgrade", "TE", "Trailer", "Keep-Alive",
     "Proxy-Authorization", "Content-Type", "Content-Encoding", "User-Agent", "Accept-Encoding", "webhook-id",
     "Webhook-Signature", "svix-id", "ce-id", ":authority", "x y", "x\r\ny", "x:", "", "é", "x" * 129],
)  # fmt: skip
def test_a_header_that_is_ours_or_https_own_is_refused(name):
    with pytest.raises(errors.TargetRefused):
        guard.check_headers({name: "value"})


@pytest.mark.parametrize("value", ["k3y\r\nb", "k3y\nb", "k3y\0b", "k3yé", "", " k3y", "k3y ", "k3y" * 1366])
def test_a_header_value_that_is_not_plain_is_refused_without_being_quoted(value):
    with pytest.raises(errors.TargetRefused) as refused:
        guard.check_headers({"X-Key": value})
    assert refused.value.path == "headers.X-Key"
    assert "k3y" not in str(refused.value)


def test_more_headers_than_anybody_needs_are_refused():
    with pytest.raises(errors.TargetRefused):
        guard.check_headers({f"x-{n}": "v" for n in range(33)})


def test_a_plain_header_is_allowed():
    guard.check_headers({"X-Api-Key": "k3y/+=", "Authorization": "Token abc"})
