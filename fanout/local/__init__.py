"""Run a real Postgres, a real Kafka and webhook receivers on this machine, for development, the demo and all tests."""
