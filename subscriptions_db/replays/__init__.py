"""Replays in Postgres: the requests of customers, and their progress.

In: a time range or one delivery to replay; chunks that were enqueued. Out: rows in Postgres, and replays to work on. Runs in
the API (`requests`), in `fanout archive` (`progress`) and in `fanout` commands.
"""
