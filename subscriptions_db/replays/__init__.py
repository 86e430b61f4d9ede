"""Replays in Postgres: what customers ask to be delivered again, and how far it is."""
