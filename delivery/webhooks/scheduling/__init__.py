"""Scheduling within a Spark task: decide which delivery may be attempted next.

In: deliveries and their endpoints' limits. Out: attempts in fair order, deferrals to the retry lane, background attempts. Runs
in the executors, on the event loop of a worker. Only `outage` and `outage_history` also run on the driver.
"""
