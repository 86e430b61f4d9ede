"""Handle API requests about deliveries, attempts, statistics, dead letters, consumers and replays.

In: a checked call in a transaction. Out: an answer, or a problem. Runs in the API, on worker threads. Conversions of
consumers, replays and statistics also run in `fanout` commands.
"""
