"""Prepare a scenario: start the servers, register the customers, and create the topics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from load_tests.harness import behaviour, platform, receiver, traffic


class Stage(NamedTuple):
    """Servers, customers and traffic before the job starts."""

    platform: platform.Platform
    customers: receiver.Receiver
    sent: traffic.Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Common parameters of all scenarios."""

    say: Callable[[str], None]
    folder: Path | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Settings of the job (`area.field`) that replace those of the scenario."""

    @contextlib.contextmanager
    def stage(
        self,
        registered: traffic.Population,
        *,
        seed: int,
        topics: traffic.Topics = traffic.TOPICS,
        disturbed: behaviour.Behaviour = behaviour.HEALTHY,
    ) -> Iterator[Stage]:
        """Start the servers, register the endpoints, and create the topics. `disturbed` is for `Receiver.disturb`."""
        self.say("starting Kafka, Postgres and the receiver …")
        with platform.started(self.folder) as servers, receiver.Receiver(disturbed) as customers:
            servers.register(registered.registry(customers.url))
            yield Stage(servers, customers, traffic.Traffic(registered, servers.config, seed, topics))
