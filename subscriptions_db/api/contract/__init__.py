"""Define the contract of the HTTP API: the types of routes, requests, answers and problems, and the API keys.

In: declarations of routes, and requests. Out: validated calls for the handlers, and problem documents. Runs in the API. API
keys also run in `fanout` commands.
"""
