"""List examples of the operations of the HTTP API: a request and its answer for each operation, as data.

In: nothing. Out: examples for the OpenAPI document. tests/integration/api sends every request to a real API: with a key of the
customer `acme` if such a key may call the operation, else with an operator's or a publisher's key. Runs in the API and in
`fanout` commands.
"""
