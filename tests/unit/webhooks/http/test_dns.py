"""The addresses of a name that are used: few, of both families, and allowed ones only, if there are any."""

import socket

import pytest

from delivery.webhooks.http import dns, guard

PUBLIC = [f"93.184.216.{number}" for number in range(100)]
PUBLIC_V6 = [f"2606:4700::{number:x}" for number in range(1, 100)]
INSIDE = [f"10.0.0.{number}" for number in range(100)]


def infos(addresses):
    return [
        (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))
        for address in addresses
    ]


@pytest.mark.parametrize(
    ("found", "used"),
    [
        pytest.param([], [], id="none"),
        pytest.param(PUBLIC[:3], PUBLIC[:3], id="few"),
        pytest.param(PUBLIC, PUBLIC[:8], id="many"),
        pytest.param(
            PUBLIC + PUBLIC_V6,
            [address for pair in zip(PUBLIC[:4], PUBLIC_V6[:4], strict=True) for address in pair],
            id="both families",
        ),
        pytest.param(PUBLIC + PUBLIC_V6[:1], [PUBLIC[0], PUBLIC_V6[0], *PUBLIC[1:7]], id="a single one of the other family"),
        pytest.param(INSIDE[:9] + PUBLIC[:2], PUBLIC[:2], id="refused ones first"),
        pytest.param(INSIDE, INSIDE[:1], id="all refused, so the failure stays the guard's"),
    ],
)
def test_few_addresses_of_a_name_are_used(found, used):
    chosen = dns.chosen(infos(found), guard.Guard().is_allowed)
    assert [info[4][0] for info in chosen] == used
