"""The platform's data in Postgres (registry, archive, replays), and the HTTP API, which also publishes events."""
