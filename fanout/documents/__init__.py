"""Documents made from the code.

In: settings, metrics and record types. Out: pages in docs/ and parts of the chart. Runs in `make docs`.
"""
