"""The registry for the executors: customers, endpoints and subscriptions, as Postgres has them.

In: rows of Postgres, followed while the job runs. Out: a broadcast snapshot, deltas for tasks whose closure is fixed, and
requests to disable endpoints. Runs on the driver. The tasks in the executors open the deltas, and make the look-ups.
"""
