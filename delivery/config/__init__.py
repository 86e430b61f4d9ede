"""Read the settings. Make from the settings the options of the Kafka clients, and the plans that workers get.

In: TOML files and `FANOUT_…` environment variables. Out: frozen settings, options of the Kafka clients, plans for the workers.
Runs on the driver, in the commands, in `fanout archive` and in the API.
"""
