"""List examples of the operations of the HTTP API: a request and its answer for each operation, as data.

In: nothing. Out: examples for the OpenAPI document. Runs in the API and in `fanout` commands.

tests/integration/api sends every request to a real API, some with another id in the path. The tests use a key of the customer
`acme` where such a key may call the operation. Elsewhere they use an operator's or a publisher's key, or no key where none is
needed.
"""
