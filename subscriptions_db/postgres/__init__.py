"""Connect to Postgres, load SQL statements, migrate the schema, and write the audit log.

In: settings and statements by name. Out: rows, or errors of `delivery.errors`. Runs on the driver, in executors with
look-ups, in the API, in `fanout archive` and in `fanout` commands.
"""
