"""`fanout reconcile`: account for every delivery.

In: the event topics and the topics that the job writes. Out: findings that name differences, and the account: due
deliveries = delivered + pending + dead-lettered + skipped. Runs in `fanout` commands and the load tests.
"""
