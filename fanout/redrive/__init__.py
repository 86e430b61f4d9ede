"""Redrive and replay: deliver dead letters and past events again.

In: dead letters or event records, and a selection. Out: retry entries in the retries topic, and notes in the attempts topic.
"""
