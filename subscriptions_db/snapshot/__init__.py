"""Read the registry from Postgres, or from the answer of `GET /v1/snapshot`.

In: rows of Postgres. Out: a snapshot, the changes since a revision, or the subscriptions that one event can match. A row that
cannot be used is returned with its fault. Runs on the driver, in executors that look up the registry, in the API, in `fanout
archive` and in `fanout` commands. Also runs in programs that read `GET /v1/snapshot`.
"""
