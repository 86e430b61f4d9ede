"""Seal customers' secrets for Postgres, and open them again.

In: a key ring, and secrets or sealed bytes. Out: sealed bytes or secrets. Runs on the driver, in executors that look up the
registry, in the API, in `fanout` commands, and in programs that read `GET /v1/snapshot`.
"""
