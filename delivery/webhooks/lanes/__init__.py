"""Deliver records, batches and leases: the code of the lanes that does not know Spark, and the worker process that runs it.

In: records, batches or leases (sets of retry entries) of a Spark task. Out: results. Runs in the executors: in the threads of
Spark's tasks and on the event loop of a worker. `worker_plan` is made on the driver.
"""
