"""Serve the HTTP API.

In: requests on a socket. Out: answers. A request is admitted by its key, handled in a transaction, and answered; a repeat
with the same `Idempotency-Key` is answered without being handled again. Runs in `fanout serve`, which is the API. table.py
and openapi.py also run in `fanout` commands.
"""
