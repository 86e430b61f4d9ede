"""A plain consumer to compare the platform with, such as a team would write in two days.

In: the settings of the platform. Out: signed requests. Runs in a process of its own, without Spark.
"""
