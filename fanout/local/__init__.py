"""Run a real Postgres, a real Kafka and webhook receivers on this machine, for development, the demo and the tests.

In: a folder for data, ports, and secrets of endpoints. Out: running servers, and requests with the results of signature
checks. Runs in `fanout` commands, the tests and the load tests. `guardian` and `broker_training` are processes of their own.
"""
