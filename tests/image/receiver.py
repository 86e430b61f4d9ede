"""Receive webhooks as a customer: verify each by the text of Standard Webhooks alone, and print its event's id.

Runs in a container of the image, from which it takes aiohttp and nothing of fanout.
"""

import base64
import hashlib
import hmac
import json

from aiohttp import web

KEY = base64.b64decode("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")


async def receive(request):
    body = await request.read()
    signed = b".".join([request.headers["webhook-id"].encode(), request.headers["webhook-timestamp"].encode(), body])
    signature = "v1," + base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
    is_verified = signature in request.headers["webhook-signature"].split(" ")
    print(f"verified {json.loads(body)['id']}" if is_verified else "forged -", flush=True)  # noqa: T201  # the test reads it
    return web.Response(status=200 if is_verified else 401)


app = web.Application()
app.router.add_post("/", receive)
web.run_app(app, port=9000, print=None)
