"""Reading the archive.

In: what a customer asks for. Out: dead letters, attempts, deliveries, and leases of consumers. Runs in the API and in `fanout
archive`.
"""
