"""Responses of endpoints do not stay in memory."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.integration import serving

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
BODIES_WITHOUT_END = """
import asyncio, resource, sys
import uvloop
from tests.integration import serving

async def main(url):
    async with serving.network() as network:
        async def some(count):
            await asyncio.gather(*(network.post(serving.to(url), serving.HEADERS, b"body", 5.0) for _ in range(count)))
        await some(1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(20):
            await some(20)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main(sys.argv[1]))
"""


def test_bodies_without_end_do_not_take_more_and_more_memory():
    """20 at once, 20 times; a process of its own, because the server's memory is not meant."""

    async def endless(_, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()

    async def main():
        async with serving.serve(endless) as server:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", BODIES_WITHOUT_END, server.url(), cwd=ROOT, stdout=asyncio.subprocess.PIPE
            )
            said, _ = await child.communicate()
        return child.returncode, int(said), len(server.requests)

    returncode, grown_kib, requests = serving.run(main())
    assert (returncode, requests) == (0, 401)
    assert grown_kib < 16 * 1024
