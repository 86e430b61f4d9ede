"""Search the archive, and lease its dead letters to consumers.

In: the search criteria or the poll of a customer. Out: dead letters, attempts, deliveries, statistics, leases of consumers, and
requested redrives. Runs in the API. `fanout` commands list consumers with their counts, and read statistics.
redrive_requests.py runs in `fanout archive` only.
"""
