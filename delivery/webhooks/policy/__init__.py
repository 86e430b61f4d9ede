"""The retry policy.

In: the status or the error of an attempt. Out: an error class, whether there is a next attempt, and when. Pure. Runs in the
executors.
"""
