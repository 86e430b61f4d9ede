"""The archive in Postgres: dead letters for customers to poll, and recent attempts."""
