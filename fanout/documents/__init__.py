"""Generate documents from the code, and check links.

In: settings, metrics, record types and imports. Out: pages and pictures in docs/, and parts of the chart; links that lead
nowhere. Runs in `make docs` and the tests.
"""
