"""Functions that the scenarios share: servers, customers, traffic, figures.

In: a scenario's wishes. Out: a running platform, and what it used.
"""
