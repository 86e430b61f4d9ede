"""Simulate the decision on the number of executors over days.

In: a load over time and measured costs. Out: executor hours, waits, and a plot. Runs in the process of the
load test, without the platform.
"""
