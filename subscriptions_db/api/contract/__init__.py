"""Define the contract of the HTTP API: the types of routes, requests, answers and problems, and the API keys.

In: a request's API key, cursor, `If-Match` headers and fields. Out: checked values, or a problem. crud.py and request_audit.py
have the pages, quotas and audit entries that the handlers share. server/handler.py validates requests by the types. Runs in the
API. `fanout api-keys` uses keys.py, and `fanout openapi` and `make docs` use the types.
"""
