"""Admit requests to the HTTP API: check the key or token, and bound the rates.

In: the headers and body of a request. Out: its principal, or a refusal with 401, 403 or 429. Runs in `fanout serve`, on its
event loop.
"""
