"""Building blocks of the state that lanes keep between micro-batches.

In: entries as bytes. Out: segments and their index as bytes, with a version in front. Pure. Runs in the executors. `pickling`
is for values that the driver broadcasts.
"""
