"""`fanout reconcile`: the account of every delivery.

In: the topics. Out: in = delivered + pending + dead-lettered + skipped, or findings that name the difference.
"""
