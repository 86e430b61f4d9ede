"""Measure 200 readers on the long poll of `GET /v1/snapshot`, while the registry of 20,000 subscriptions changes.

Run: `python -m tests.benchmarks.followers [readers] [changes]`. One server; readers and Postgres are processes of their own and
share the machine. A change is known when the last reader has it, counted from its commit. Ten readers share a key.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import statistics
import sys
import time

import aiohttp

from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.registration import registered_rows as rows
from tests.benchmarks import served
from tests.integration.api.world import running

READERS_OF_A_KEY = 10
EVERY_S, IDLE_S = 2.0, 10.0
CHANGE = "update endpoints set max_in_flight = 1 + floor(random() * 100) where endpoint_id = %s"


async def follow(
    port: int, texts: list[str], readers: int, until: float
) -> tuple[list[dict[int, float]], list[tuple[float, int]], int]:
    """Return of each reader when it had which revision; time and bytes of each first, whole answer; how many were refused."""
    found: list[dict[int, float]] = [{} for _ in range(readers)]
    first: list[tuple[float, int]] = []
    refused = 0
    connector = aiohttp.TCPConnector(limit=0)
    # Unpacking 200 whole registries in one process would be all that is measured.
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector, auto_decompress=False) as session:

        async def follow_alone(number: int) -> None:
            nonlocal refused
            headers = {"authorization": f"Bearer {texts[number // READERS_OF_A_KEY]}"}
            known, began = "", time.time()
            while (left := until - time.time()) > 0:
                path = f"/v1/snapshot?since={known}&wait_s={min(30, left):.1f}" if known else "/v1/snapshot"
                async with session.get(path, headers=headers | ({"if-none-match": f'"{known}"'} if known else {})) as response:
                    size = len(await response.read())
                    if response.status in {200, 304}:
                        if not known:
                            first.append((time.time() - began, size))
                        known = response.headers["etag"].strip('W/"')
                        found[number].setdefault(int(known), time.time())
                    else:
                        refused += 1
                        await asyncio.sleep(float(response.headers.get("retry-after", "1")))

        await asyncio.gather(*(follow_alone(number) for number in range(readers)))
    return found, first, refused


def following(*of: object) -> tuple[list[dict[int, float]], list[tuple[float, int]], int]:
    """Run `follow` in a process of its own."""
    return asyncio.run(follow(*of))


def main(readers: int, changes: int) -> None:
    spawning = multiprocessing.get_context("spawn")
    with served.registered() as (config, connection):
        made = [keys.create(connection, customer_id=None, scope=Scope.EXECUTOR) for _ in range(-(-readers // READERS_OF_A_KEY))]
        texts = [key.text.reveal().decode() for key in made]
        with running(config) as port, concurrent.futures.ProcessPoolExecutor(1, spawning) as client:
            client.submit(following, port, texts, 1, time.time()).result()  # the process has begun
            cpu = time.process_time()
            until = time.time() + 15 + IDLE_S + changes * EVERY_S + 3
            seen = client.submit(following, port, texts, readers, until)
            time.sleep(15)
            cpu = report("all begin with the whole registry, and wait", cpu)
            time.sleep(IDLE_S)
            cpu = report(f"all wait, {IDLE_S:g} s", cpu)
            committed = {}
            for number in range(changes):
                connection.execute(CHANGE, [f"endpoint-{number}"])
                committed[rows.revision(connection)] = time.time()
                time.sleep(EVERY_S)
            report(f"{changes} changes, one each {EVERY_S:g} s", cpu)
            found, first, refused = seen.result()
    times, size = [took for took, _ in first], first[0][1]
    print(f"the whole registry, {size} bytes: p50 {statistics.median(times):.2f} s, the last {max(times):.2f} s")
    print(f"refused: {refused}")
    for name, pick in (("the median reader", statistics.median), ("the last reader", max)):
        waits = [pick(had(of, revision) - at for of in found) for revision, at in committed.items()]
        print(f"{name} has a change after: p50 {statistics.median(waits):.2f} s, at worst {max(waits):.2f} s")


def had(seen: dict[int, float], revision: int) -> float:
    """Return when a reader had a revision, or a later one."""
    return min(at for known, at in seen.items() if known >= revision)


def report(of: str, cpu: float) -> float:
    """Print the CPU seconds of the server since then."""
    now = time.process_time()
    print(f"{of}: {now - cpu:.2f} CPU s of the server")
    return now


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200, int(sys.argv[2]) if len(sys.argv) > 2 else 15)
