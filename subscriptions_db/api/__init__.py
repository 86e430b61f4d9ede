"""The HTTP API: customers and the operator register, look and change over HTTP."""
