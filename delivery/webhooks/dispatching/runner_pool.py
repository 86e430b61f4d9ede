"""Run the attempts of one Spark task in a bounded number of asyncio tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sized


class RunnerPool:
    """At most `max_runners` runners. A runner is an asyncio task that attempts one delivery after another.

    A runner whose attempt moves to the background is detached (`detach`): it runs on, and no longer counts. `ready` is the line
    of endpoint queues that are ready for a slot (one request in flight). A runner idles while `ready` is empty, and is woken by
    `start`. Otherwise the runner awaits `attempt_next`, and ends when `attempt_next` returns False. `on_failure` is called when
    a runner has ended with an error. Not thread-safe.
    """

    def __init__(
        self,
        max_runners: int,
        ready: Sized,
        attempt_next: Callable[[asyncio.Task[None]], Awaitable[bool]],
        on_failure: Callable[[], None],
    ) -> None:
        self._max_runners = max_runners
        self._ready = ready
        self._attempt_next = attempt_next
        self._on_failure = on_failure
        self._runners: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        """A future for each idle runner. Its result wakes the runner."""
        self.failure: BaseException | None = None
        """The error of the runner that failed last. None: no runner has failed."""

    @property
    def busy(self) -> int:
        """Return the number of runners that are not idle. Detached runners do not count."""
        return len(self._runners) - len(self._idle)

    def start(self) -> None:
        """Unless `ready` is empty, wake an idle runner. If none is idle, start one, up to `max_runners` runners."""
        if not self._ready:
            return
        if self._idle:
            self._idle.pop().set_result(None)
        elif len(self._runners) < self._max_runners:
            runner = asyncio.create_task(self._run())
            self._runners.add(runner)
            runner.add_done_callback(self._runner_ended)

    def detach(self, runner: asyncio.Task[None]) -> None:
        """Remove a runner whose attempt moves to the background.

        The runner continues and no longer counts, so `start` may start another runner. An error of the removed runner does not
        become `failure`.
        """
        runner.remove_done_callback(self._runner_ended)
        self._runners.discard(runner)

    def cancel(self) -> None:
        """Cancel all runners. The caller must not call `start` again."""
        for runner in self._runners:
            runner.cancel()

    async def _run(self) -> None:
        runner = asyncio.current_task()
        assert runner is not None, "it runs in one"  # noqa: S101
        while True:
            while not self._ready:
                self._idle.append(idle := asyncio.get_running_loop().create_future())
                await idle
            if not await self._attempt_next(runner):
                return

    def _runner_ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if not runner.cancelled() and runner.exception() is not None:
            self.failure = runner.exception()
            self._on_failure()
