"""The delivery core, which runs in an executor's Python worker. It imports neither pyspark nor psycopg.

The driver, the API, the archive and the commands use parts of this package.
"""
