"""Redrive dead letters and replay past events: enqueue their deliveries in the retry lane. Find rejected records.

In: dead letters or event records, and a selection. Out: retry entries in the retries topic. A redrive also writes notes that
name the redriven dead letters: in headers of the records with the retry entries, and in the attempts topic. Runs in `fanout`
commands and in `fanout archive`.
"""
