"""Scale the number of executors with the load of the lanes. Runs on the driver."""
