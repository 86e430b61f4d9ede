"""Measure time in a worker: the driver's time, and the delay by the worker's own machine.

In: counters of Linux, and the driver's time. Out: an estimate of the driver's time, and the time for which a worker waited for
its own machine. Runs in the executors.
"""
