"""Handle API requests about deliveries, attempts, statistics, dead letters, consumers and replays.

In: a checked call in a transaction. Out: an answer, or a problem. Runs in the API, on worker threads. `fanout` commands
also use the functions `shown`, which convert consumers, replays and statistics to the API's types.
"""
