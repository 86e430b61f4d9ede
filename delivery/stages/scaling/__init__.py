"""Scale the number of executors with the load. Runs on the driver."""
