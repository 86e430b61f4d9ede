"""Reading the archive.

In: the search criteria or the poll of a customer. Out: dead letters, attempts, deliveries, and leases of consumers. Runs in the
API and in `fanout archive`.
"""
