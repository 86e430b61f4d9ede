"""The platform's data in Postgres (registry, archive, replays), and the HTTP API, which also publishes events.

In: requests, manifests, and records of the result topics. Out: rows in Postgres, answers, snapshots of the registry, and
published events. Runs in the API, in `fanout archive` and in `fanout` commands. The job uses this package to read the registry
and to disable endpoints. With `snapshot.source` `lookup`, the executors use it too.
"""
