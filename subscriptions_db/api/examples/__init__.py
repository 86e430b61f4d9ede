"""List examples of the operations of the HTTP API: a request and its answer for each operation, as data.

In: nothing. Out: examples for the OpenAPI document. Runs in the API and in `fanout` commands.

tests/integration/api sends every request to a real API, some with another id in the path. The tests use a key of the customer
`acme` if it may call the operation. For other operations, the tests use an operator's or a publisher's key, or no key if none
is needed.
"""
