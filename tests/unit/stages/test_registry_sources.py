"""The job refuses settings with which it could never follow the registry."""

import threading

import pytest

from delivery import errors
from delivery.config import settings
from delivery.stages.registry import registry_sources


def test_an_interval_that_is_longer_than_the_registry_may_be_old_is_refused():
    """Regression: all lanes paused between two requests for changes, although Postgres answered."""
    config = settings.Settings(snapshot=settings.SnapshotSettings(poll_interval_s=60, max_age_s=30))
    with pytest.raises(errors.SettingsError, match=r"poll_interval_s is 60, and snapshot\.max_age_s is 30"):
        registry_sources.source(config, None, threading.Event())
