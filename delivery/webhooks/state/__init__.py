"""Building blocks of the state that lanes keep between micro-batches.

In: entries as bytes. Out: segments and their index as bytes, with a version in front. Pure. Runs in the executors. The driver
sums up `backlog`, and exchanges values by `pickling`. The commands, the archive too, use `chunking` and `versioning`.
"""
