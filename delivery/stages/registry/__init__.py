"""Send the registry to the executors, and define the interfaces by which the job reads it.

In: the newest registry, which `subscriptions_db.following` reads while the job runs. Out: with broadcasts, a snapshot and its
later changes (deltas); with look-ups, the access to Postgres and the number of the newest revision. Runs on the driver, except
that tasks in the executors decrypt the deltas.
"""
