"""The checkpoint of the lanes: its folder or store, the one driver that may use it, and its repair.

In: settings, the files of a checkpoint, the result topics, a Lease of Kubernetes. Out: locks, positions, and the completed work
of an interrupted micro-batch. Runs on the driver, and in `fanout accept-loss` and `fanout doctor`. `completed_reader` also runs
in the executors.
"""
