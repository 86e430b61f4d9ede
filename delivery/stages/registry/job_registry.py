"""The registry as the job needs it: interfaces that `subscriptions_db.following` implements on Postgres.

Runs on the driver. `delivery` imports nothing from `subscriptions_db`: the command that starts the job passes a JobRegistry.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Protocol

from pyspark import SparkContext

from delivery.registry_model import Disable
from delivery.webhooks.routing import registries
from delivery.webhooks.routing.published_registry import Published


class FollowedRegistry(Protocol):
    """The newest registry, which a thread of its own reads. Thread-safe."""

    def current(self) -> Published | None:
        """Return the registry that Postgres confirmed at most `snapshot.max_age_s` ago. None: the job is asked to stop.

        Wait without limit until there is such a registry. Raise SettingsError if the registry can never be read with these
        settings.
        """

    @property
    def newest(self) -> Published | None:
        """The newest registry, of any age; None: none has been read yet."""

    def pause_reason(self) -> str | None:
        """Return why the lanes are paused: no registry was read, or it is too old. None: they are not paused."""


class RegistrySupply(Protocol):
    """The source of the registry for the direct, batch and retry lanes: a broadcast snapshot, or look-ups in Postgres."""

    @property
    def follower(self) -> FollowedRegistry | None:
        """The registry that the driver follows, also for the real-time lane. None: the executors look the registry up."""

    def source(self, context: SparkContext, lane: str, /) -> registries.RefreshedSource | None:
        """Return the source of the registry for a lane's next micro-batch; None: the job is asked to stop.

        Wait until a registry was read and is at most `snapshot.max_age_s` old; with look-ups, until Postgres answers. Raise
        SettingsError if the registry can never be read with these settings.
        """

    def pause_reason(self) -> str | None:
        """Return why the lanes are paused. None: the lanes are not paused.

        With a follower: no registry was read yet, or it is too old. With look-ups: the last request to Postgres failed, or none
        has ended.
        """


class JobRegistry(Protocol):
    """The access of a job to the registry. Each method is called at most once for a job, with the event that ends the job."""

    def follow(self, stop: threading.Event) -> FollowedRegistry:
        """Start a thread that reads the registry. Return the FollowedRegistry without waiting for the first read.

        Raise SettingsError if there is no valid key ring.
        """

    def look_up(self, stop: threading.Event) -> RegistrySupply:
        """Return a supply with which the executors read the registry. Raise SettingsError if there is no valid key ring."""

    def disabling(self, stop: threading.Event) -> AbstractContextManager[Disable]:
        """Return a context with the function that requests to disable endpoints.

        The end of the context sets `stop`, and waits at most 10 s until the last requests are written.
        """
