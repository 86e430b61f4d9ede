"""Filters on the content of events.

In: the pattern of a subscription and the document of an event. Out: True if the event matches. Runs in the executors; the API
checks patterns by the same code.
"""
