"""The retry lane hears now and then that an endpoint accepts something, and not with each delivery."""

from delivery.webhooks import acceptances
from tests import builders

ONE, OTHER = builders.endpoint("ep1"), builders.endpoint("ep2")


def test_it_is_told_at_once_and_again_when_that_is_old():
    told = acceptances.Acceptances(every_s=60.0)
    assert told.news([ONE], 1000.0) == [ONE]
    assert told.news([ONE, OTHER], 1059.9) == [OTHER]
    assert told.news([ONE, OTHER], 1060.0) == [ONE]
    assert told.news([ONE, OTHER], 1119.9) == [OTHER]


def test_who_has_accepted_nothing_is_not_told_of():
    told = acceptances.Acceptances(every_s=60.0)
    told.news([ONE], 1000.0)
    assert told.news([], 2000.0) == []


def test_no_more_are_remembered_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(acceptances, "MAX_KNOWN", 2)
    told = acceptances.Acceptances(every_s=60.0)
    third = builders.endpoint("ep3")
    assert told.news([ONE, OTHER], 1000.0) == [ONE, OTHER]
    assert told.news([third], 1001.0) == [third]
    assert told.news([ONE, third], 1002.0) == [ONE], "what was forgotten is told too often, and never too seldom"
