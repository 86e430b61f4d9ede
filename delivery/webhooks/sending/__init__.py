"""One attempt: payload, headers, signature, request.

In: a delivery and its endpoint. Out: an `Attempt`. Runs in the executors; the API sends test events by the same code.
"""
