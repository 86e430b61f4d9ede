"""Customers behind a real server, and a real worker that delivers to them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

from aiohttp import web

from delivery.webhooks.lanes import worker, worker_plan
from delivery.webhooks.results import topic_rows
from delivery.webhooks.routing import registries
from delivery.webhooks.routing.registry_snapshot import Snapshot
from tests.integration.serving import OPEN

TOPICS = topic_rows.Topics(attempts="a", dead_letters="d", rejected="r", retries="t")


class Customers:
    """A server on a thread of its own. What it remembers and answers is said by `answer`, to each request on any path."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.ended = asyncio.Event()
        """For answers that come late, or never: the server is closing."""

    async def answer(self, request: web.Request) -> web.Response:
        raise NotImplementedError

    def __enter__(self) -> Any:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    def end(self) -> None:
        """Let the answers come that wait for it."""
        self._loop.call_soon_threadsafe(self.ended.set)

    def __exit__(self, *_: object) -> None:
        self.end()
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> web.AppRunner:
        app = web.Application(client_max_size=10**8)
        app.router.add_post("/{name:.*}", self.answer)
        runner = web.AppRunner(app, auto_decompress=False, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()  # 200 connections may come at once
        return runner


class Keeping(Customers):
    """Keeps the requests by path, and gives the answers that the test sets."""

    def __init__(self, answer: bytes = b"ok") -> None:
        super().__init__()
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self._body = answer

    async def answer(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append((request.match_info["name"], headers, await request.read()))
        return web.Response(body=self._body)


class Source:
    """A registry that does not change."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def registry(self, last: registries.Registry | None) -> registries.Registry:
        return last or registries.WholeRegistry("base", self._snapshot)


def working(**options: Any) -> contextlib.closing[worker.Worker]:
    """Give a worker to whom these customers' addresses are open."""
    return contextlib.closing(worker.Worker(worker_plan.Plan(topics=TOPICS, guard=OPEN, **options)))
