"""Serve the HTTP API.

In: requests on a socket. Out: answers. A request is admitted (../admission), handled in a transaction, and answered. If a
change that succeeded is repeated with the same `Idempotency-Key` within a day, the stored answer is returned.
publish_handler.py handles the requests that publish events, without a transaction, and refuses an `Idempotency-Key`. Runs in
`fanout serve`, which is the API. route_table.py also runs in `fanout` commands.
"""
