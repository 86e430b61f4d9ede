"""A plain consumer to compare the platform with: what a team would write instead in two days.

In: the settings of the platform. Out: signed requests. Runs in a process of its own, without Spark.
"""
