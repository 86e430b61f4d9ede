"""Limit the requests to endpoints and hosts, and judge endpoints: circuit breakers, response times, local outages, deferrals.

In: attempts, their times, and limits. Out: when a request may go, and which deliveries are deferred to the retry lane. Runs in
the executors, on the event loop of a worker. The driver runs `outage_detection` too, and only the driver runs `outage_history`.
The API and the commands use `limits`, `host_limits` and `endpoint_clock` for the requests that they send. The API also limits
its clients by `limits`.
"""
