"""Redrive dead letters and replay past events: enqueue them in the retry lane again.

In: dead letters or event records, and a selection. Out: retry entries in the retries topic. A redrive also writes notes that
name the redriven dead letters, beside the retry entries and to the attempts topic. Runs in `fanout` commands and in
`fanout archive`.
"""
