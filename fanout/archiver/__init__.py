"""`fanout archive`: copy results from Kafka to Postgres, and run redrives and replays.

In: the attempts, dead-letter and event topics, and requests in Postgres. Out: rows of the archive, retry entries, operational
events. Runs in `fanout archive`.
"""
