"""Draw plots and write pages, in one style for all load tests.

In: a function that draws, or rows of a table. Out: SVG and HTML. Runs in the process of the load test.
"""
