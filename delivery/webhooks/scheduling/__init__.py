"""Decide which delivery of a Spark task may be attempted next, within the limits of endpoints, hosts and the worker.

In: deliveries and their endpoints' limits. Out: attempts in fair order, deferrals to the retry lane, background attempts. Runs
in the executors, on the event loop of a worker. The driver runs `outage_detection` too, and only the driver runs
`outage_history`. The API and the commands use `limits`, `host_limits` and `endpoint_clock` for the requests that they send. The
API also limits its clients by `limits`.
"""
