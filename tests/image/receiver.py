"""Receive webhooks as a customer: verify each by the text of Standard Webhooks alone, and print the events that were accepted.

Runs in a container of the image, from which it takes aiohttp and nothing of fanout.
`/failing` refuses all for its first ten seconds.
"""

import base64
import hashlib
import hmac
import json
import time

from aiohttp import web

KEY = base64.b64decode("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
REFUSES_FOR_S = 10
"""Longer than the direct lane tries by itself, so that the retry lane has to."""
first_asked = {}


async def receive(request):
    body = await request.read()
    name = request.headers["webhook-id"]
    signed = b".".join([name.encode(), request.headers["webhook-timestamp"].encode(), body])
    signature = "v1," + base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
    now = time.monotonic()
    if request.path == "/failing" and now - first_asked.setdefault(request.path, now) < REFUSES_FOR_S:
        return web.Response(status=503)
    is_verified = signature in request.headers["webhook-signature"].split(" ")
    document = json.loads(body)
    for event in document if isinstance(document, list) else [document]:
        print(f"{request.path} {'verified' if is_verified else 'forged'} {event['id']}", flush=True)  # noqa: T201  # the test reads it
    return web.Response(status=200)


app = web.Application()
app.router.add_post("/{lane}", receive)
web.run_app(app, port=9000, print=None)
