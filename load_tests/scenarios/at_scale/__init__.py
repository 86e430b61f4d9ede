"""Scenarios at the mission's scale, as data: their phases, what they measure, and the bounds that must hold.

In: a scenario of the table, and a size. Out: figures, verdicts, and a page with plots. Runs in the process of
the load test.
"""
