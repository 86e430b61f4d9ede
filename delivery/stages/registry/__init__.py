"""The registry for the executors.

In: rows of Postgres, followed while the job runs. Out: a broadcast snapshot, changes for tasks whose closure is fixed,
endpoints to disable. Runs on the driver; tasks read the changes.
"""
