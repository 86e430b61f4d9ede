"""The real-time lane: topics of `source.realtime_pattern`, under Spark's real-time trigger (docs/adr/0040)."""
