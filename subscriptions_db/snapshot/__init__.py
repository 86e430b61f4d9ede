"""The registry, read for the job.

In: rows of Postgres. Out: a snapshot, changes since a revision, or what one event can be due to; unusable rows are
quarantined. Runs on the driver.
"""
