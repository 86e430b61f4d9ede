"""The Spark side: one file for each arrow of the picture in docs/architecture.md."""
