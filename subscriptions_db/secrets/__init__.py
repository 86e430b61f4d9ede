"""Secrets of customers, sealed at rest.

In: secrets and a key ring. Out: sealed bytes, and back. Runs on the driver, in executors with
look-ups, in the API and in `fanout` commands.
"""
