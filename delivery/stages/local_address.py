"""Give Spark an address of this machine if the machine's own host name does not resolve, as in many containers.

Runs before a JVM starts, on the driver and in the commands that use Spark, and in `fanout doctor`. Java resolves the machine's
host name while Spark's classes load, and ends with 60 lines of traceback if that fails. If the environment names an address,
Spark does not resolve the host name.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping

from delivery import errors

ADDRESS, NAME = "SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"
"""Environment variables from which Spark takes this machine's address and host name."""
LOOPBACK = {ADDRESS: "127.0.0.1", NAME: "localhost"}
"""Values of ADDRESS and NAME for a job that has its driver and all workers on this machine."""
_ELSEWHERE = ("192.0.2.1", 9)
"""An unused address (RFC 5737). Connecting a UDP socket to it sends nothing, and reveals the local address of the route."""


def host_name() -> str:
    """Return this machine's own name."""
    return socket.gethostname()


def resolves(name: str) -> bool:
    """Return True if the host name `name` resolves to an address."""
    with contextlib.suppress(OSError, UnicodeError):
        return bool(socket.getaddrinfo(name, None))
    return False


def outgoing_address() -> str | None:
    """Return the address from which this machine reaches other machines; None without a network."""
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
    own_address: Callable[[], str | None] = outgoing_address,
) -> dict[str, str]:
    """Return the environment variables to add for Spark, by this machine's host `name` and Spark's `master`.

    1. The operator has set ADDRESS or NAME: return none.
    2. The host name resolves: return none.
    3. The master is `local…`: return LOOPBACK, because driver and workers are on this machine.
    4. Any other master: return the outgoing address, at which executors on other hosts reach the driver.

    In case 4, raise SettingsError if there is no outgoing address.
    """
    if environ.get(ADDRESS) or environ.get(NAME) or is_resolved(name):
        return {}
    if master.startswith("local"):
        return dict(LOOPBACK)
    address = own_address()
    if address is None:
        raise errors.SettingsError(
            f"this machine's host name, {name}, does not resolve, and no route leads to other machines, so Spark cannot "
            f"start. Set {ADDRESS} in the environment to the address at which the executors reach this machine, or add the "
            "name to /etc/hosts"
        )
    return {ADDRESS: address, NAME: address}
