"""Building blocks of the state that lanes keep between micro-batches.

In: entries as bytes. Out: segments, indexes and versions as bytes. Pure, except the pickling of what the driver broadcasts.
Runs in the executors.
"""
