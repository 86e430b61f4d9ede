"""The settings areas of the lanes that keep state have the names of their lanes."""

from delivery.config import lane_areas, settings
from delivery.stages.lanes.batch_query import BatchQuery
from delivery.stages.lanes.retry_query import RetryQuery


def test_each_lane_with_state_has_an_area_of_its_own_name():
    config = settings.Settings()
    assert [lane.area_of(config) for lane in (BatchQuery, RetryQuery)] == [
        getattr(config, lane.NAME) for lane in (BatchQuery, RetryQuery)
    ]


def test_wake_up_topics_are_those_of_all_areas_with_state():
    config = settings.Settings.model_validate({"batch": {"ticks_topic": "a"}, "retry": {"ticks_topic": "b"}})
    assert lane_areas.wakeup_topics(config) == {"a", "b"}
