"""The platform's data in Postgres: the registry, the archive and replays, with the HTTP API for them."""
