"""Run the direct, batch and retry lanes as streaming queries.

In: settings, a Spark session and the registry. Out: running queries, restarted when a plan must change, paused while our
network is broken. Runs on the driver.
"""
