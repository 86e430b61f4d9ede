"""Read the settings, and make options of clients and plans for workers from them.

In: TOML files and `FANOUT_…` environment variables. Out: frozen settings, options of the Kafka clients, plans for the workers.
Runs on the driver, in the commands, in `fanout archive` and in the API.
"""
