"""Serve the HTTP API.

In: requests on a socket. Out: answers. A request is admitted by its key or token, handled in a transaction, and answered. A
repeat with the same `Idempotency-Key` is answered without being handled again. publish_handler.py handles the requests that
publish events, without a transaction. Runs in `fanout serve`, which is the API. route_table.py and openapi.py also run in
`fanout` commands, and problem_pages.py in `make docs`.
"""
