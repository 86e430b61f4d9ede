"""Replays in Postgres: the requests of customers, and their progress."""
