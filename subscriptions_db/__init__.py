"""The platform's data in Postgres: the registry, the archive and replays. With the HTTP API, which also publishes events."""
