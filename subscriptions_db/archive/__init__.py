"""The archive in Postgres: dead letters for customers to poll, recent attempts, statistics, and the health of endpoints."""
