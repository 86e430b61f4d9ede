"""Read settings, print, and parse times: functions that the commands share.

In: values. Out: tables, JSON, YAML or names on standard output; errors on standard error.
Runs in `fanout` commands.
"""
