"""What every scenario begins with: the servers, customers who are registered, and somebody who publishes for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from load_tests.harness import behaviour, platform, receiver, traffic


class Stage(NamedTuple):
    """What is there before the job is started."""

    platform: platform.Platform
    customers: receiver.Receiver
    sent: traffic.Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a scenario is run, whichever it is."""

    say: Callable[[str], None]
    folder: Path | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Settings of the job (`area.field`) in place of the scenario's own."""

    @contextlib.contextmanager
    def stage(
        self,
        registered: traffic.Population,
        *,
        seed: int,
        topics: traffic.Topics = traffic.TOPICS,
        disturbed: behaviour.Behaviour = behaviour.HEALTHY,
    ) -> Iterator[Stage]:
        """Start the servers, register the endpoints and make the topics. `disturbed` is for `Receiver.disturb`."""
        self.say("starting Kafka, Postgres and the receiver …")
        with platform.started(self.folder) as servers, receiver.Receiver(disturbed) as customers:
            servers.register(registered.registry(customers.url))
            yield Stage(servers, customers, traffic.Traffic(registered, servers.config, seed, topics))
