"""Functions that the scenarios share: servers, customers, traffic, figures.

In: the parameters of a scenario. Out: a running platform, and the figures of its deliveries, CPU and memory. Runs in
the process of the load test. The receivers have processes of their own.
"""
