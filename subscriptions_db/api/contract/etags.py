"""Compute the ETags of resources, and evaluate the conditions of requests (RFC 9110, section 13). Pure.

Runs in the API. An ETag is a digest of the fields that the answer to GET shows. An endpoint has the field `updated_at`, which a
new secret changes. So the ETag changes with the endpoint's secrets too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pydantic

from subscriptions_db.api.contract import problems

_TAG = re.compile(r'(W/)?("[!#-~\x80-\xff]*")')
_TAGS = re.compile(rf"\s*(?:\*|{_TAG.pattern}(?:\s*,\s*{_TAG.pattern})*)\s*")


class Conditions(NamedTuple):
    """The values of `If-Match` and `If-None-Match`; several lines of a header are joined. None: the header is missing."""

    if_match: str | None = None
    if_none_match: str | None = None


UNCONDITIONAL = Conditions()
"""The conditions of a request without `If-Match` and `If-None-Match`."""


def of(document: Mapping[str, Any], resource: type[pydantic.BaseModel]) -> str:
    """Return the ETag of a resource of the type `resource`.

    `document` has the fields of the type. Other fields in it, such as a new secret, are ignored.
    """
    shown = {name: document.get(name) for name in resource.model_fields}
    return f'"{hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]}"'


def names(header: str, etag: str | None, *, is_strong: bool) -> bool:
    """Return True if a header names the ETag of a resource, or has `*` and the resource exists.

    `etag` is None if the resource does not exist. With `is_strong`, weak ETags (`W/"…"`) do not count: a proxy may have made
    them.
    """
    if etag is None:
        return False
    return header.strip() == "*" or any(tag == etag and not (is_strong and weak) for weak, tag in _TAG.findall(header))


def require_none(headers: Mapping[str, str]) -> None:
    """Raise Refused with 422 if a request has `If-Match` or `If-None-Match`.

    Called for operations that evaluate neither header, and are not GET. An operation that ignored the condition could overwrite
    a change that the client has not seen. The names in `headers` are case-insensitive.
    """
    if found := [name for name in ("If-Match", "If-None-Match") if name in headers]:
        raise problems.invalid(*((name, "is not evaluated by this operation: send the request without it") for name in found))


def require(conditions: Conditions, etag: str | None) -> None:
    """Raise Refused with 412 if the conditions do not hold for a resource. `etag` is None if the resource does not exist.

    A malformed condition is refused with 422. A request that ignored the condition could overwrite a change that the client has
    not seen.
    """
    for header, condition in (("If-Match", conditions.if_match), ("If-None-Match", conditions.if_none_match)):
        if condition is not None and not _TAGS.fullmatch(condition):
            said = "is malformed, so nothing was changed: send the ETag of an answer, with its quotes, or *"
            raise problems.invalid((header, said))
    if conditions.if_match is not None and etag is None:
        raise problems.Refused(412, "there is no such resource, so nothing was changed: leave If-Match out to create it")
    if conditions.if_match is not None and not names(conditions.if_match, etag, is_strong=True):
        is_weak = names(conditions.if_match, etag, is_strong=False)
        why = "If-Match has a weak ETag, which never matches" if is_weak else "the resource is not the one in If-Match"
        advice = "send the ETag without W/" if is_weak else "get it again, and decide again on the change"
        raise problems.Refused(412, f"{why}, so nothing was changed: {advice}")
    if conditions.if_none_match is not None and names(conditions.if_none_match, etag, is_strong=False):
        if conditions.if_none_match.strip() == "*":
            advice = "the resource exists already, so nothing was changed: leave If-None-Match out to replace it"
        else:
            advice = "the resource still has the ETag in If-None-Match, so nothing was changed: send it in If-Match instead"
        raise problems.Refused(412, advice)
