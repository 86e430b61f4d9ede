"""`fanout reconcile`: the account of every delivery.

In: the topics. Out: the account in = delivered + pending + dead-lettered + skipped, and findings that name differences.
Runs in `fanout` commands.
"""
