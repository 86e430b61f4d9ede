"""The scenarios: each answers one question about the platform under load.

In: a rate and a duration. Out: figures, and whether they meet their bounds. Runs in the process of the load test.
"""
