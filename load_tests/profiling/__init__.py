"""Profile the job's processes during the measured part of a load test: flame graphs, and CPU by thread and component.

In: the processes of the job, with their roles. Out: flame graphs, and a table as JSON. Runs in the process of the load test,
which starts the profilers.
"""
