"""Kafka, for the commands.

In: topics. Out: their records up to now, and events published.
"""
