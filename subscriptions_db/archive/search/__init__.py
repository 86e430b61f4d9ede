"""Search the archive, and lease its dead letters to consumers.

In: the search criteria or the poll of a customer. Out: dead letters, attempts, deliveries, statistics, leases of consumers, and
requested redrives. Runs in the API. Counts and statistics also run in `fanout` commands, and redrive_requests.py in `fanout
archive`.
"""
