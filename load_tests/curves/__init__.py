"""Measure how the cost of a delivery grows with one variable, and draw the curves.

In: an axis, which is a base shape and the values of one variable. Out: figures, a fit, and a plot. Runs in
the process of the load test.
"""
