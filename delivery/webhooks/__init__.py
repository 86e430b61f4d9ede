"""The delivery core: everything that runs inside an executor's Python worker, free of pyspark and psycopg."""
