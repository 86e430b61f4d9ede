"""The scenarios: each one question about the platform under load.

In: a rate and a duration. Out: figures, and whether they hold.
"""
