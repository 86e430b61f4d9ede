"""Send the registry to the executors, and name what the job needs of it.

In: the newest registry, which `subscriptions_db.following` reads while the job runs. Out: a broadcast snapshot, and deltas for
tasks whose closure is fixed. Runs on the driver. The tasks in the executors open the deltas.
"""
