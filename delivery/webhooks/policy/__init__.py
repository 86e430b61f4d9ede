"""Decide what follows from an attempt: its error class, the time of a next attempt, and what is kept of the response.

In: the status, headers and body, or the error, of an attempt. Out: these decisions. Pure, except that the waits before a next
attempt have a random part. Runs in the executors, and in the API for test events. Every process uses the names of error classes
and reasons.
"""
