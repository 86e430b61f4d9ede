"""Define the type of an example, and the ids that the examples share. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A request to an operation, and the answer to it. PATH_PARAMETERS has the values of the path's parameters."""

    query: Mapping[str, Any] = field(default_factory=dict)
    """Parameter → value. Other parameters are left out."""
    body: Any = None
    """The JSON body. None: the operation takes none, or several content types."""
    bodies: Mapping[str, Any] = field(default_factory=dict)
    """Content type → body, if the operation takes several content types."""
    answer: Any = None
    """The answer as JSON, or as text if the operation answers with bytes. None: the answer has no body."""


ENDPOINT_ID = "ep_3f6c1d0a9b8e4c27a5d1e0f9"
SUBSCRIPTION_ID = "sub_5a0d7c2e4b9f4e61b3c8d7a2"
REPLAY_ID = "rpl_7e21b40f6d9c4a85b0e3f1c6"
LETTER_ID = "5657811958628353"
LETTER_CURSOR = "bC41NjU3ODExOTU4NjI4MzUz"
"""The cursor after the dead letter LETTER_ID."""
RECEIPT = "ci41NjU3ODExOTU4NjI4MzUzLjNmNmMxZDBhOWI4ZTRjMjdhNWQxZTBmOTVhMGQ3YzJl"
"""A receipt handle of the dead letter LETTER_ID."""
CONSUMER_NAME = "billing"
WEBHOOK_ID = "msg_f6d40937dac172b9e9e18b756deba0aa"
ATTEMPT_ID = "YS4xNzc4NDE0NDAwMDAwMDAwLjE"
PATH_PARAMETERS: Mapping[str, str] = {
    "attempt_id": ATTEMPT_ID,
    "consumer_id": CONSUMER_NAME,
    "customer_id": "acme",
    "endpoint_id": ENDPOINT_ID,
    "event_type_id": "order.created",
    "letter_id": LETTER_ID,
    "replay_id": REPLAY_ID,
    "subscription_id": SUBSCRIPTION_ID,
    "tenant_id": "t1",
    "token": "9c0d1e2f" * 8,
    "webhook_id": WEBHOOK_ID,
}
"""The name of a path parameter → its value in the examples."""
WHOLE_LIST: dict[str, Any] = {"next_cursor": None, "previous_cursor": None, "total": None}
"""The fields of a list with all its rows on one page."""
