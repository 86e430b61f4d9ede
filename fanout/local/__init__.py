"""A real Postgres and a real Kafka on this machine, from packages alone, for development, the demo and the tests."""
