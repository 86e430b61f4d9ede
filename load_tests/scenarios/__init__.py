"""The scenarios: each answers one question about the platform under load.

In: parameters, such as a rate and a duration. Out: figures; from at_scale also verdicts, which say whether the figures meet
their bounds. Runs in the process of the load test.
"""
