"""Run the commands of operators: register, diagnose, show statistics, accept the loss of records, smoke-test.

In: settings, the registry, Kafka and the checkpoint. Out: changes of the registry and of checkpoints, a test event, and
findings with the repair of each fault. Runs in `fanout` commands.
"""
