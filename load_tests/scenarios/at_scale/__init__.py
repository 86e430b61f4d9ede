"""Scenarios at the scale of the mission (docs/load-tests.md), as data: phases, figures, and the bounds that must hold.

In: a scenario of `table.SCENARIOS`, and a size. Out: figures, verdicts, and a page with plots. Runs in the process of
the load test.
"""
