"""Redrive dead letters, replay past events, and republish rejected records.

In: dead letters, event records or rejected records, and a selection. Out: retry entries in the retries topic, and copies of
rejected records in their event topics. A redrive also writes notes that name the redriven dead letters: in headers of the
records with the retry entries, and in the attempts topic. Runs in `fanout` commands and in `fanout archive`.
"""
