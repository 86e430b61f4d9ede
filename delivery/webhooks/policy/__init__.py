"""The retry policy.

In: the status and headers, or the error, of an attempt. Out: an error class, whether there is a next attempt and when, and the
headers to keep. Pure. Runs in the executors, and in the API for test events. The names of error classes and reasons are used
everywhere.
"""
