"""Block requests to addresses, names and headers that a customer must not reach or set.

Runs in the executors, on the driver, in the API and in the commands. Registration checks URLs, headers and literal addresses,
and looks up no names. Each connection checks the address of its socket by the same rules. The connection's check decides,
because a name may lead to any address.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delivery import errors

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

# `ipaddress.is_global` is not used: it changes between patch releases of Python, and accepts several of these networks.
DENIED = (
    "0.0.0.0/8",  # this network; 0.0.0.0 reaches the local host
    "10.0.0.0/8",  # private (RFC 1918)
    "100.64.0.0/10",  # carrier-grade NAT, and the metadata service of some clouds
    "127.0.0.0/8",  # loopback
    "168.63.129.16/32",  # the wire server of Azure, a public address with an internal service
    "169.254.0.0/16",  # link-local, and the metadata service of most clouds
    "172.16.0.0/12",  # private
    "192.0.0.0/24",  # IETF protocol assignments
    "192.0.2.0/24",  # documentation
    "192.88.99.0/24",  # 6to4 relays, deprecated
    "192.168.0.0/16",  # private
    "198.18.0.0/15",  # benchmarking
    "198.51.100.0/24",  # documentation
    "203.0.113.0/24",  # documentation
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, and 255.255.255.255
    # Only 2000::/3 of IPv6 is assigned for global unicast; everything else is refused.
    "::/3",  # unspecified, loopback, IPv4-compatible, IPv4-translated (SIIT), local-use NAT64, discard and dummy prefix
    "2001::/23",  # IETF protocol assignments, Teredo and ORCHID among them
    "2001:db8::/32",  # documentation
    "3fff::/20",  # documentation
    "4000::/2",  # unassigned, and segment routing (5f00::/16)
    "8000::/1",  # unassigned, and unique local, link-local, site-local, multicast
)
EMBEDDING = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4: the IPv4 address follows the prefix
)
"""IPv6 networks whose addresses contain an IPv4 address, each with the number of bits behind the IPv4 address. The guard checks
the IPv4 address."""

INTERNAL_NAMES = frozenset(
    {"localhost", "localdomain", "local", "internal", "intranet", "lan", "home", "corp", "private", "svc", "arpa", "onion"}
)
"""Last labels of host names that exist only inside a network."""

MAX_URL_CHARS = 2048
MAX_PORT = 65_535
MAX_HEADERS = 32
"""Most headers that a customer may set for an endpoint."""
MAX_HEADER_NAME_CHARS = 128
MAX_HEADER_VALUE_CHARS = 4096
_FRAMING = ("transfer-encoding", "trailer", "te", "expect")
"""Headers that control how a body is sent. If a customer could set these headers, the receiver might read only a part of the
body."""
_HOP_BY_HOP = ("connection", "keep-alive", "upgrade", "via", "host")
"""Headers about the connection (RFC 9110, section 7.6.1), and the host of the request."""
_OURS = ("accept", "accept-encoding", "user-agent", "cookie", "range")
"""Headers that the platform sets, or that would change the response."""
DENIED_HEADERS = frozenset((*_FRAMING, *_HOP_BY_HOP, *_OURS))
DENIED_HEADER_PREFIXES = ("content-", "webhook-", "svix-", "ce-", "sec-", "proxy-")

_NOT_ALLOWED = "the address is not allowed: an endpoint is a public https address"
_DEFAULT_PORTS = {"https": 443, "http": 80}
_NOT_IN_URLS = frozenset(' \\"<>^`{|}')
_AUTHORITY_ENDS = re.compile(r"[/?#]")
_AUTHORITY = re.compile(r"(\[(?P<v6>[^\[\]]*:[^\[\]]*)\]|(?P<name>[^\[\]:]+))(:(?P<port>[0-9]{0,5}))?")
"""Host and port of a URL. The pattern is so narrow that all URL parsers find the same host. So requests go to the checked
host."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_LOOKS_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The rules for URLs and addresses, with exceptions for development. Has plain values, so that it can be pickled.

    Raise SettingsError if `allow_networks` has a text that is no network.
    """

    allow_networks: tuple[str, ...] = ()
    """CIDR networks that may be reached although they are not public."""
    allow_http: bool = False
    """True if endpoints may use plain http."""
    allow_ports: tuple[int, ...] = (80, 443, 8080, 8443)
    """Allowed ports. Empty: any."""

    def __post_init__(self) -> None:
        # Checked at the start, rather than inside aiohttp at the first connection.
        try:
            _networks(self.allow_networks)
        except ValueError as exc:
            raise errors.SettingsError(
                f"setting delivery.allow_networks: {exc}, so nothing was started or changed: write networks such as 127.0.0.0/8"
            ) from None

    def check_url(self, url: str) -> None:
        """Raise TargetRefused if `url` must not be the URL of an endpoint or of its token server.

        Called when an endpoint is registered, when its row is read, and when a process prepares requests to it. Looks up no
        name. All refused addresses and names get the same text, so that the text does not help a port scan.
        """
        if len(url) > MAX_URL_CHARS:
            raise errors.TargetRefused("url", f"has {len(url)} characters; at most {MAX_URL_CHARS} are accepted: shorten it")
        if not (url.isascii() and url.isprintable() and _NOT_IN_URLS.isdisjoint(url)):
            problem = "holds a character that no URL has: percent-encode it; in a host, use punycode (xn--…)"
            raise errors.TargetRefused("url", problem)
        scheme, _, rest = url.partition("://")
        if scheme.lower() not in ({"https", "http"} if self.allow_http else {"https"}):
            raise errors.TargetRefused("url", "must begin with https://")
        authority = _AUTHORITY_ENDS.split(rest, maxsplit=1)[0]
        if not authority:
            raise errors.TargetRefused("url", "has no host: write https://host/path")
        if "@" in authority:
            raise errors.TargetRefused("url", "contains a user name or password: remove it, and use auth")
        if "#" in url:
            raise errors.TargetRefused("url", "has a fragment: remove # and what follows")
        parts = _AUTHORITY.fullmatch(authority)
        if parts is None:
            raise errors.TargetRefused("url", "has no valid host or port: write https://host/path")
        port = int(parts["port"] or _DEFAULT_PORTS[scheme.lower()])
        if not 0 < port <= MAX_PORT or (self.allow_ports and port not in self.allow_ports):
            raise errors.TargetRefused(
                "url", f"has port {port}: use one of {', '.join(map(str, self.allow_ports)) or '1 to 65535'}"
            )
        if not self._is_host_allowed((parts["v6"] or parts["name"]).lower()):
            raise errors.TargetRefused("url", _NOT_ALLOWED)

    def is_allowed(self, address: str) -> bool:
        """Return True if a connection to this IP address is allowed. Return False for text that is no IP address."""
        return _is_allowed(address, self.allow_networks)

    def socket_factory(self, addr_info: Sequence[Any]) -> socket.socket:
        """Return the socket for a connection; raise BlockedSocket for a refused address. For `aiohttp.TCPConnector`.

        aiohttp passes the address to which it will connect, for names and literals alike. If a name has several addresses,
        aiohttp calls this method again for the next one, so only allowed addresses are used.
        """
        family, kind, protocol, _, address = addr_info
        if not self.is_allowed(address[0]):
            raise BlockedSocket("the address is not allowed")
        made = socket.socket(family=family, type=kind, proto=protocol)
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def _is_host_allowed(self, host: str) -> bool:
        """Return True if a URL may have this host.

        1. A literal address is checked as an address.
        2. A name that ends with a dot, or that a resolver might read as a number, is refused.
        3. `localhost` is allowed if 127.0.0.1 is.
        4. Any other name is allowed if it has two labels or more, all labels are valid, and INTERNAL_NAMES lacks the last one.
        """
        try:
            ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            return self.is_allowed(host)
        labels = host.split(".")
        if len(labels) > 1 and labels[-1] == "":
            return False  # a trailing dot evades comparisons with names
        if _LOOKS_NUMERIC.fullmatch(labels[-1]):
            return False
        if host == "localhost" and self.is_allowed("127.0.0.1"):
            return True
        if not all(_LABEL.fullmatch(label) for label in labels):
            return False
        return len(labels) > 1 and labels[-1] not in INTERNAL_NAMES


class BlockedSocket(OSError):
    """The guard's refusal of an address, inside aiohttp. An OSError, because aiohttp then tries the name's next address.

    aiohttp raises a ClientConnectorError with this error as `os_error`, but only if the errors of all addresses have the same
    text. Errors with different texts become a plain OSError. So the text never contains the address.
    """


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise TargetRefused if a customer must not set `headers`, a mapping from names to values, for an endpoint.

    The message never quotes a value, which may be a secret.
    """
    if len(headers) > MAX_HEADERS:
        raise errors.TargetRefused("headers", f"has {len(headers)} headers; at most {MAX_HEADERS} are accepted: leave some out")
    for name, value in headers.items():
        path = f"headers.{ascii(name[:MAX_HEADER_NAME_CHARS])[1:-1]}"
        lowered = name.lower().replace("_", "-")  # as CGI and similar interfaces read it: Content_Length becomes CONTENT_LENGTH
        if len(name) > MAX_HEADER_NAME_CHARS or not _TOKEN.fullmatch(name):
            problem = f"is no valid name of a header: use 1 to {MAX_HEADER_NAME_CHARS} letters, digits or `-`"
            raise errors.TargetRefused(path, problem)
        if lowered in DENIED_HEADERS or lowered.startswith(DENIED_HEADER_PREFIXES):
            raise errors.TargetRefused(path, "is set by the platform or by HTTP itself: leave it out")
        if len(value) > MAX_HEADER_VALUE_CHARS:
            problem = f"its value has {len(value)} characters; at most {MAX_HEADER_VALUE_CHARS} are accepted: shorten it"
            raise errors.TargetRefused(path, problem)
        if not value or not (value.isascii() and value.isprintable()) or value != value.strip():
            raise errors.TargetRefused(path, "its value must be printable ASCII, not empty, without spaces at its ends")


@functools.cache
def _networks(cidrs: tuple[str, ...]) -> tuple[IpNetwork, ...]:
    return tuple(ipaddress.ip_network(cidr) for cidr in cidrs)


@functools.lru_cache(maxsize=65_536)
def _is_allowed(address: str, allow_networks: tuple[str, ...]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.scope_id is not None:
        return False  # a zone is valid on this machine only
    if _is_in(parsed, _networks(allow_networks)):
        return True
    embedded = _embedded(parsed)
    if embedded is not None:
        return _is_allowed(str(embedded), allow_networks)
    return not _is_in(parsed, _networks(DENIED))


def _is_in(address: IpAddress, networks: tuple[IpNetwork, ...]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def _embedded(address: IpAddress) -> ipaddress.IPv4Address | None:
    for network, bits_right in EMBEDDING:
        if address.version == network.version and address in network:
            return ipaddress.IPv4Address(int(address) >> bits_right & 0xFFFFFFFF)
    return None
