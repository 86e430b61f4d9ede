"""Conditions of requests hold as RFC 9110, section 13, says."""

import pydantic
import pytest

from subscriptions_db.api.contract import etags, problems


class Resource(pydantic.BaseModel):
    """A resource with two fields."""

    id: str
    amount: float | None = None


TAG = etags.of({"id": "a", "amount": 1e30}, Resource)


def test_an_etag_depends_on_the_fields_of_the_resource_alone():
    assert etags.of({"amount": 1e30, "id": "a", "secret": "s"}, Resource) == TAG
    assert etags.of({"id": "a", "amount": 2}, Resource) != TAG
    assert etags.of({"id": "a"}, Resource) == etags.of({"id": "a", "amount": None}, Resource), "kept by the version before"


@pytest.mark.parametrize(
    ("header", "etag", "is_strong", "is_named"),
    [
        (TAG, TAG, True, True),
        ('"other"', TAG, True, False),
        (f'"other", {TAG}', TAG, True, True),
        (f"W/{TAG}", TAG, True, False),
        (f"W/{TAG}", TAG, False, True),
        (" * ", TAG, True, True),
        ("*", None, True, False),
        (TAG, None, False, False),
        (TAG.strip('"'), TAG, False, False),
        (f"{TAG}{TAG}", TAG, False, True),
    ],
)
def test_a_header_names_an_etag(header, etag, is_strong, is_named):
    assert etags.names(header, etag, is_strong=is_strong) == is_named


@pytest.mark.parametrize(
    ("if_match", "if_none_match", "etag", "status"),
    [
        (None, None, TAG, None),
        (None, None, None, None),
        (TAG, None, TAG, None),
        ("*", None, TAG, None),
        ('"other"', None, TAG, 412),
        (TAG, None, None, 412),
        ("*", None, None, 412),
        (TAG.strip('"'), None, TAG, 422),
        ("", None, TAG, 422),
        (f"{TAG},", None, TAG, 422),
        (None, "*", TAG, 412),
        (None, "*", None, None),
        (None, f"W/{TAG}", TAG, 412),
        (None, '"other"', TAG, None),
        (TAG, '"other"', TAG, None),
        (TAG, TAG, TAG, 412),
        (None, TAG.strip('"'), TAG, 422),
        (None, "", None, 422),
        (None, f"{TAG}{TAG}", TAG, 422),
        ('"other"', "unquoted", TAG, 422),
    ],
)
def test_a_change_is_refused_unless_its_conditions_hold(if_match, if_none_match, etag, status):
    conditions = etags.Conditions(if_match, if_none_match)
    if status is None:
        etags.require(conditions, etag)
        return
    with pytest.raises(problems.Refused) as refused:
        etags.require(conditions, etag)
    assert refused.value.problem.status == status


@pytest.mark.parametrize(
    ("if_match", "if_none_match", "etag", "why"),
    [
        ("*", None, None, "there is no such resource"),
        ('"other"', None, TAG, "the resource is not the one in If-Match"),
        (None, "*", TAG, "the resource exists already"),
        (None, TAG, TAG, "the resource still has the ETag in If-None-Match"),
    ],
)
def test_a_condition_that_does_not_hold_is_named(if_match, if_none_match, etag, why):
    with pytest.raises(problems.Refused) as refused:
        etags.require(etags.Conditions(if_match, if_none_match), etag)
    assert refused.value.problem.detail.startswith(f"{why}, so nothing was changed")
