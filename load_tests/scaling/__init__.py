"""The decision on the number of executors, simulated over days.

In: a load over time and measured costs. Out: executor hours, waits, and a plot.
"""
