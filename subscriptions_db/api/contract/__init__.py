"""The contract of the HTTP API: routes, schemas, problems, keys.

In: declarations. Out: what the handlers and the OpenAPI document are made of. Runs in the API.
"""
