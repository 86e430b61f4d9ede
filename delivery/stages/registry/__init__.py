"""Send the registry to the executors, and define the interfaces by which the job reads it.

In: the newest registry, which `subscriptions_db.following` reads while the job runs. Out: a broadcast snapshot and deltas, or
with look-ups the access to Postgres and a revision. Runs on the driver. The tasks in the executors open the deltas.
"""
