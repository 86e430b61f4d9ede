"""Store and compact the state that the batch and the retry lane keep between micro-batches.

In: entries as bytes. Out: segments as bytes, with a version in front, and the segments to merge or drop. `segment_store`
serves the retry lane, and `compaction` and `versioning` both lanes. Pure. Runs in the executors. The driver sums up `backlog`,
and uses `pickling` to exchange values with workers. The commands and the archive use `chunking`. The commands, the archive
and the driver use `versioning` and `json_decoding`.
"""
