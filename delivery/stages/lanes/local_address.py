"""Give Spark an address of this machine where the machine's own host name does not resolve, as in many containers.

Runs on the driver, before its JVM starts, and in the command. Java looks its host name up while Spark's classes load, and ends
with 60 lines of traceback where no answer comes. Spark asks nothing where the environment names an address.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping

from delivery import errors

ADDRESS, NAME = "SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"
LOOPBACK = {ADDRESS: "127.0.0.1", NAME: "localhost"}
_ELSEWHERE = ("192.0.2.1", 9)
"""An address of nobody (RFC 5737). A UDP socket that is connected to it sends nothing, and has the address of the way out."""


def host_name() -> str:
    """Return this machine's own name."""
    return socket.gethostname()


def resolves(name: str) -> bool:
    """Tell whether a host name has an address."""
    with contextlib.suppress(OSError, UnicodeError):
        return bool(socket.getaddrinfo(name, None))
    return False


def way_out() -> str | None:
    """Return the address from which this machine reaches others, or None without a network."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.connect(_ELSEWHERE)
        return str(out.getsockname()[0])
    return None


def missing(
    environ: Mapping[str, str],
    master: str,
    *,
    name: str,
    is_resolved: Callable[[str], bool] = resolves,
    own_address: Callable[[], str | None] = way_out,
) -> dict[str, str]:
    """Return the variables that Spark needs in its environment besides: none where it finds its address by itself.

    1. The operator has set one of them: nothing is added.
    2. The host name resolves: nothing is added.
    3. The master is `local…`: driver and workers are on this machine, and talk over its loopback.
    4. Another master: executors elsewhere have to reach the driver, at the address of the way out.

    Raise SettingsError where there is no such address.
    """
    if environ.get(ADDRESS) or environ.get(NAME) or is_resolved(name):
        return {}
    if master.startswith("local"):
        return dict(LOOPBACK)
    address = own_address()
    if address is None:
        raise errors.SettingsError(
            f"this machine's host name, {name}, does not resolve, and it has no network: set {ADDRESS} to the address at which "
            "the executors reach it, or put the name into /etc/hosts"
        )
    return {ADDRESS: address, NAME: address}
