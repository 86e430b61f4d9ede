"""Clocks of a worker.

In: what Linux and the driver say of time. Out: the driver's time, and how long this process waited for its own machine. Runs
in the executors.
"""
