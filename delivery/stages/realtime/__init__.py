"""The real-time lane: it delivers the topics of `source.realtime_pattern` under Spark's real-time trigger (docs/adr/0040)."""
