"""Scale the number of executors with the load of the lanes.

In: the lag and the throughput of each lane, and the executors that there are. Out: requests to Spark for executors, and
executors to decommission. `executor_absence` pauses the lanes while there is no executor, also in a job that does not scale.
Runs on the driver.
"""
