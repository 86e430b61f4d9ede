"""Follow the registry in Postgres for a running job, and disable endpoints at its request.

In: rows of Postgres, and the job's requests to disable endpoints. Out: the newest registry, or a source with which executors
look rows up; disabled endpoints. Implements the interfaces of `delivery.stages.registry.job_registry`. Runs on the driver; the
look-ups run in the executors.
"""
