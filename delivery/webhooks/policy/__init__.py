"""The retry policy.

In: the status or the error of an attempt. Out: an error class, whether to try again, and when. Pure. Runs in the executors.
"""
