"""Prepare a scenario: start the servers, register the customers, and create the topics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from load_tests.harness import behaviour, platform, receiver, traffic
from load_tests.profiling import profiler


class Stage(NamedTuple):
    """The running servers, the receiver of all customers, and the traffic, before the job starts."""

    platform: platform.Platform
    customers: receiver.Receiver
    sent: traffic.Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Parameters that all scenarios share, from the command line."""

    say: Callable[[str], None]
    """Called with each line about the progress."""
    folder: Path | None = None
    """Folder for data and logs, emptied first. None: a temporary folder."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Settings of the job (`area.field`) that replace the settings of the scenario."""
    profiler: profiler.Profiler | None = None
    """Profiles the measured parts of `direct`, `batch`, `mission` and `latency`. None: nothing is profiled."""

    def profiled(self, part: str, job: platform.Job, customers: receiver.Receiver) -> contextlib.AbstractContextManager[None]:
        """Return a context for a part of the scenario, which is profiled if there is a `profiler`. `part` names the part."""
        if self.profiler is None:
            return contextlib.nullcontext()
        return self.profiler.profiled(part, job.meter.processes, lambda: customers.count)

    @contextlib.contextmanager
    def stage(
        self,
        registered: traffic.TrafficPopulation,
        *,
        seed: int,
        topics: traffic.Topics = traffic.TOPICS,
        disturbed: behaviour.Behaviour = behaviour.HEALTHY,
    ) -> Iterator[Stage]:
        """Start the servers, register the population, and create the topics. Stop the servers at the end of the context.

        Kafka answers over TLS if `overrides` set `kafka.security_protocol` to SSL.
        `seed` seeds the random choice of the events. `disturbed` is the behaviour of the endpoints while the receiver is
        disturbed.
        """
        self.say("starting Kafka, Postgres and the receiver …")
        over_tls = self.overrides.get("kafka.security_protocol") == "SSL"
        with platform.started(self.folder, over_tls=over_tls) as servers, receiver.Receiver(disturbed) as customers:
            servers.register(registered.registry(customers.url))
            yield Stage(servers, customers, traffic.Traffic(registered, servers.config, seed, topics))
