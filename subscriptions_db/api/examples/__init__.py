"""List examples of the operations of the HTTP API: a request and its answer for each operation, as data.

In: nothing. Out: documents for the OpenAPI document. tests/integration/api/test_examples.py sends every request to a real API,
as customer `acme` where its key may call the operation. Runs in the API and in `fanout` commands.
"""
