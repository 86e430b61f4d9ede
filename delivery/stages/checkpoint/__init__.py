"""Read and repair the checkpoint of the lanes, and find completed work after a crash.

In: settings, the files of a checkpoint, the result topics. Out: the next offset of each partition, and the completed-work log
of a micro-batch that runs again. Runs on the driver, in `fanout accept-loss` and in `fanout doctor`.
"""
