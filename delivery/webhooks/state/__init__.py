"""Store and compact the state that the batch and the retry lane keep between micro-batches.

In: entries as bytes. Out: segments and their index as bytes, with a version in front. Pure. Runs in the executors. The driver
sums up `backlog`, and uses `pickling` to exchange values with workers. The commands and the archive use `chunking` and
`versioning`.
"""
