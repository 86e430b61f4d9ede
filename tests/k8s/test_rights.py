"""The chart grants the driver the rights that it used in the tests before these, and no others, by the audit log."""

import json
from http import HTTPStatus

from tests.k8s import release
from tests.k8s.cluster import kubectl, layout


def asked(account, since):
    """The requests of the account since a time, by the audit log. While a release is uninstalled its driver has no rights."""
    user = f"system:serviceaccount:{release.NAMESPACE}:{account}"
    events = map(json.loads, layout.AUDIT_LOG.read_text().splitlines())
    return [
        event
        for event in events
        if event["user"]["username"] == user and "objectRef" in event and event["requestReceivedTimestamp"] >= since
    ]


def used(account, since):
    """The verbs that the account used, by resource; refused requests do not count."""
    found = {}
    for event in asked(account, since):
        if event["responseStatus"]["code"] < HTTPStatus.BAD_REQUEST:
            found.setdefault(event["objectRef"]["resource"], set()).add(event["verb"])
    return found


def granted(role):
    """The verbs that the role grants, by resource."""
    found = {}
    for rule in kubectl.get("role", role, "--namespace", release.NAMESPACE)["rules"]:
        for resource in rule["resources"]:
            found.setdefault(resource, set()).update(rule["verbs"])
    return found


def test_the_driver_has_the_rights_that_it_uses_and_no_others(installed):
    assert granted("fanout-all") == used("fanout-all", installed.began_at)


def test_the_driver_is_refused_nothing(installed):
    refused = [
        event for event in asked("fanout-all", installed.began_at) if event["responseStatus"]["code"] == HTTPStatus.FORBIDDEN
    ]
    assert not [(event["verb"], event["objectRef"]["resource"]) for event in refused]


def test_no_other_account_of_the_release_asks_the_api_server(installed):
    found = kubectl.get("serviceaccounts", "--namespace", release.NAMESPACE)["items"]
    accounts = [account["metadata"]["name"] for account in found]
    assert "fanout" in accounts
    assert not {
        account: used(account, installed.began_at)
        for account in accounts
        if account != "fanout-all" and used(account, installed.began_at)
    }
