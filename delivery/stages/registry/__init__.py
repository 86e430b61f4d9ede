"""Read the registry from Postgres, and give the executors its tenants, endpoints and subscriptions.

In: rows of Postgres, followed while the job runs. Out: a broadcast snapshot, deltas for tasks whose closure is fixed, and the
settings of look-ups. `endpoint_disabler` also writes to the registry: it disables endpoints. Runs on the driver. The tasks in
the executors open the deltas, and make the look-ups.
"""
