"""Poll dead letters over HTTP in the name of many customers, beside the job.

In: a number of customers, and the pace of their polls. Out: latencies and answers. Runs in the process of the load test, except
the polls, which have a process of their own.
"""
