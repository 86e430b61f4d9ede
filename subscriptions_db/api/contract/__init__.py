"""Define the contract of the HTTP API: the types of routes, requests, answers and problems, and the API keys.

In: a request's key, cursor, conditions and fields. Out: checked values, or a problem. The handlers share what is here: pages,
conditions, quotas and audit entries. server/handler.py validates requests by the types. Runs in the API. `fanout api-keys` uses
keys.py, and `fanout openapi` and `make docs` use the types.
"""
