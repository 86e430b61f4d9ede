"""`fanout reconcile`: account for every delivery.

In: the event topics and the topics that the job writes. Out: the account in = delivered + pending + dead-lettered + skipped,
and findings that name differences. Runs in `fanout` commands and the load tests.
"""
