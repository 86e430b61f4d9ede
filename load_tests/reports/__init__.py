"""Draw plots and write pages. The load tests share the style.

In: a function that draws, or rows of a table. Out: SVG and HTML. Runs in the process of the load test.
"""
