"""Measure the HTTP API: mixed requests of 50 customers at a fixed rate, over a registry of 20,000 subscriptions.

Run: `python -m tests.benchmarks.api [requests a second] [seconds]`. Requests begin when they are due,
also while earlier requests are still in flight. A latency counts from then on.
Server, client and Postgres are processes of their own and share the machine.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import itertools
import multiprocessing
import random
import statistics
import sys
import time

import aiohttp
import psutil

from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from tests.benchmarks import registry, served
from tests.integration.api.world import running

ASKING = 50
EVENT = {"event": {"type": "type.1", "tenant_id": "tenant-1", "data": {"amount": 1}}}


def request(rng: random.Random, customer: int) -> tuple[str, str, object]:
    """Return one request of the mix: method, path, body."""
    endpoint = f"/v1/endpoints/endpoint-{customer + registry.CUSTOMERS * rng.randrange(10)}"
    chance = rng.random()
    if chance < 0.6:
        return "GET", endpoint, None
    if chance < 0.7:
        return "GET", "/v1/endpoints?limit=20", None
    if chance < 0.8:
        return "GET", "/v1/subscriptions?limit=20", None
    if chance < 0.9:
        return "POST", f"{endpoint}/explain", EVENT
    if chance < 0.97:
        return "PATCH", endpoint, {"max_in_flight": rng.randrange(1, 100)}
    return "POST", "/v1/endpoints", {"url": "https://hooks.example.com/new"}


async def load(port: int, texts: list[str], rate: float, seconds: float) -> dict[str, list[float]]:
    """Return the latencies by kind of request; a refusal is one too."""
    rng, found = random.Random(1), collections.defaultdict(list)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=aiohttp.TCPConnector(limit=200)) as session:

        async def send(due: float) -> None:
            customer = rng.randrange(ASKING)
            method, path, body = request(rng, customer)
            headers = {"authorization": f"Bearer {texts[customer]}"}
            async with session.request(method, path, json=body, headers=headers) as response:
                await response.read()
                found[f"{method} {response.status}"].append(time.perf_counter() - due)

        began = time.perf_counter()
        tasks = []
        for number in range(int(rate * seconds)):
            due = began + number / rate
            await asyncio.sleep(max(0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(send(due)))
        await asyncio.gather(*tasks)
    return found


def loaded(*of: object) -> tuple[dict[str, list[float]], float]:
    """Do so in a process of its own; return the CPU seconds that it took as well."""
    cpu = time.process_time()
    return asyncio.run(load(*of)), time.process_time() - cpu


def cpu_s(server: psutil.Process) -> float:
    """Return the CPU seconds of a Postgres server, with its backends."""
    times = [process.cpu_times() for process in (server, *server.children())]
    return sum(spent.user + spent.system for spent in times) + times[0].children_user + times[0].children_system


def main(rate: float, seconds: float) -> None:
    spawning = multiprocessing.get_context("spawn")
    with served.registered() as (config, connection):
        made = [keys.create(connection, customer_id=f"customer-{n}", scope=Scope.CUSTOMER_ADMIN) for n in range(ASKING)]
        with running(config) as port, concurrent.futures.ProcessPoolExecutor(1, spawning) as client:
            texts = [key.text.reveal().decode() for key in made]
            client.submit(loaded, port, texts, 20, 3).result()  # connections, caches
            postgres = psutil.Process(connection.info.backend_pid).parent()
            assert postgres
            cpu, cpu_postgres = time.process_time(), cpu_s(postgres)
            found, cpu_client = client.submit(loaded, port, texts, rate, seconds).result()
            spent = {"server": time.process_time() - cpu, "Postgres": cpu_s(postgres) - cpu_postgres, "client": cpu_client}
            print("CPU a request:", *(f"{who} {took / rate / seconds * 1000:.2f} ms" for who, took in spent.items()))
        for kind, latencies in sorted({"all": list(itertools.chain(*found.values())), **found}.items()):
            cuts = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else latencies * 99
            print(f"{kind:12} {len(latencies):6}  p50 {cuts[49] * 1000:7.1f}  p99 {cuts[98] * 1000:7.1f} ms")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 200, float(sys.argv[2]) if len(sys.argv) > 2 else 15)
