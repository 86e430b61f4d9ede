"""Replays in Postgres: the requests of customers, and their progress.

In: a time range or one delivery to replay; the offsets up to which deliveries were enqueued, and outcomes of deliveries. Out:
rows in Postgres, and replays to work on. Runs in the API (`requests`), in `fanout archive` (`progress`) and in `fanout`
commands.
"""
