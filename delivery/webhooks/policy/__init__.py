"""Decide what follows from an attempt: its error class, whether and when a next attempt is made, and the headers to keep.

In: the status and headers, or the error, of an attempt. Out: these decisions. Pure. Runs in the executors, and in the API for
test events. Every process uses the names of error classes and reasons.
"""
