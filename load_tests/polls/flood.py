"""Run `fanout archive` and `fanout serve` beside the job, with customers who poll far more than usual.

Some customers poll at a fixed pace: they read pages of dead letters, or lease dead letters. One customer exceeds its limit, and
acknowledges nothing. One customer reads its answers slowly. In production `fanout archive`, `fanout serve` and Postgres run on
machines of their own. In a load test these processes share the machine of the job. So the job has priority for a core, and the
usage of these processes is reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fanout.local import kafka_server
from load_tests.harness import phases, platform, usage
from load_tests.polls import letter_archive, polling_customers
from subscriptions_db.postgres import connect

CATCH_UP_S = 300
"""Seconds within which `fanout archive` must have archived the attempts of all deliveries before the phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """Size of the flood of polls beside the job."""

    letters: int = 20_000
    """Dead letters in the archive when the polls begin."""
    customers: int = 50
    """Customers who poll; the dead letters are distributed evenly among them."""
    polls_per_s: float = 40.0
    """Polls a second of all customers together."""
    limit: int = 10
    """Largest number of dead letters of a poll."""
    greedy_per_s: float = 200.0
    """Additional polls a second of the greedy customer, who acknowledges nothing."""
    allowed_per_s: float = 20.0
    """`api.max_requests_per_s`, the limit that the greedy customer exceeds."""
    slow_readers: int = 4
    """Connections whose client reads its answers slowly."""
    nice: int = 10
    """Nice value of `fanout archive`, `fanout serve`, the pollers and Postgres. 0: the job has no priority for a core."""
    seed: int = 1

    @contextlib.contextmanager
    def around(self, scene: phases.Scene) -> Iterator[Beside]:
        """Run the flood while the context is open. The context opens when the earlier deliveries' attempts are archived."""
        servers, port = scene.servers, kafka_server.free_port()
        usage.step_back(servers.postgres_pid, self.nice)
        with connect.connect(servers.config.database) as connection:
            customer_ids = letter_archive.customers(self.customers)
            keys = letter_archive.admit(connection, customer_ids)
            letter_archive.write(connection, customer_ids, self.letters, seed=self.seed)
        scene.say(f"{self.letters:,} dead letters of {self.customers} customers can be polled")
        serving = {"api.port": str(port), "api.max_requests_per_s": str(self.allowed_per_s)}
        with contextlib.ExitStack() as stack:
            archive = stack.enter_context(servers.command("archive", {}, nice=self.nice))
            archive.wait_until_ready()
            count = scene.customers.count
            archived_s = archive.wait_until(
                lambda: _archived(archive) >= count, within_s=CATCH_UP_S, goal="the archived attempts of all earlier deliveries"
            )
            scene.say(f"the archive has caught up after {archived_s:.1f} s")
            serve = stack.enter_context(servers.command("serve", serving, nice=self.nice))
            serve.wait_until_ready()
            polls = polling_customers.Polls(
                port=port,
                keys=keys,
                per_s=self.polls_per_s,
                limit=self.limit,
                greedy_per_s=self.greedy_per_s,
                slow_readers=self.slow_readers,
                seed=self.seed,
                nice=self.nice,
            )
            meters = {
                "archive": archive.meter,
                "serve": serve.meter,
                "postgres": usage.Meter(servers.postgres_pid),
                "kafka": usage.Meter(servers.kafka_pid),
            }
            yield Beside(stack.enter_context(polling_customers.Pollers(polls)), archive, meters, self.nice)


class Beside:
    """The running flood, beside the events of a phase."""

    def __init__(
        self, pollers: polling_customers.Pollers, archive: platform.Command, meters: Mapping[str, usage.Meter], nice: int
    ) -> None:
        self._pollers = pollers
        self._archive = archive
        self._meters = meters
        self._nice = nice
        self.reset()

    def reset(self) -> None:
        """Reset the figures, so that they cover the time from now on."""
        self._pollers.reset()
        self._archived, self._before = _archived(self._archive), self._read()

    def figures(self) -> dict[str, Any]:
        """Stop the polls. Return `nice` and, since the last reset, `archived_attempts`, `polls`, and `cpu_s` by process."""
        spent = {name: used.since(self._before[name]) for name, used in self._read().items()}
        report = self._pollers.report()
        cpu_s = {name: round(used.jvm_s + used.python_s, 1) for name, used in spent.items()}
        return {
            "archived_attempts": round(_archived(self._archive) - self._archived),
            "polls": report.document(),
            "cpu_s": cpu_s | {"pollers": round(report.cpu_s, 1)},
            "nice": self._nice,
        }

    def _read(self) -> dict[str, usage.Usage]:
        return {name: meter.read() for name, meter in self._meters.items()}


def _archived(archive: platform.Command) -> float:
    return archive.metric("fanout_archived_total", kind="attempts")
