"""The contract of the HTTP API: routes, schemas, problems, keys.

In: declarations of routes and their types. Out: validated calls for the handlers, and the OpenAPI document. Runs in the API.
"""
