"""Filters on the content of events.

In: the pattern of a subscription and the document of an event. Out: whether the event matches. Runs in the executors; the API
uses the same code.
"""
