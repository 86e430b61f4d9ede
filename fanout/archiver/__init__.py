"""`fanout archive`: from the topics to Postgres.

In: the attempts and dead-letter topics. Out: rows of the archive, redrives, replays, operational events.
"""
