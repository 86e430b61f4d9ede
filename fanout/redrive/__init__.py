"""Redrive and replay: dead letters and old events, delivered again.

In: dead letters or records, and a selection. Out: entries of the retry lane, and a note in the attempts topic.
"""
