"""Functions that the commands share: settings, printing, times.

In: values. Out: tables, JSON, YAML or names on standard output; errors on standard error.
Runs in `fanout` commands.
"""
