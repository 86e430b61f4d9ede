"""Run the commands of operators: read and change the registry, diagnose, show statistics, accept lost records, smoke-test.

In: settings, the registry, the archive, Kafka and the checkpoint. Out: changes of the registry and of checkpoints, a test
event, and findings with the repair of each fault. Runs in `fanout` commands.
"""
