"""Lock the checkpoint of the lanes against a second driver, read and repair it, and find completed work after a crash.

In: settings, the files of a checkpoint, the result topics, a Lease of Kubernetes. Out: locks, the next offset of each
partition, and the completed-work log of a micro-batch that runs again. Runs on the driver, in `fanout accept-loss` and in
`fanout doctor`.
"""
