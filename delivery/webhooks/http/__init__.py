"""HTTP/1.1 to endpoints.

In: a target, headers and a body. Out: a bounded response, or an error of `delivery.errors`. Addresses inside our own network
are refused. Runs in the executors; the API sends test events by the same code.
"""
