"""Clocks of a worker.

In: time from Linux and from the driver. Out: the driver's time, and the delay by this process's own machine. Runs in the
executors.
"""
