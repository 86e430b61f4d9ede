"""The archive in Postgres: dead letters to poll, recent attempts, statistics, endpoint health and operational events."""
