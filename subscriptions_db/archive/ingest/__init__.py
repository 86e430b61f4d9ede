"""Writing the archive.

In: records of the attempts and dead-letter topics. Out: rows in partitions by day, each exactly once. Runs in `fanout archive`.
"""
