"""The registry: who receives what, kept in Postgres and read by the job as a snapshot."""
