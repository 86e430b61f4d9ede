"""The HTTP server of the API.

In: requests on a socket. Out: answers; each request is admitted, done once, and answered. Runs in `fanout serve`.
"""
