"""Define the `fanout` commands: their names, options and output.

In: the arguments of a command line. Out: text or JSON, and an exit code. Runs in `fanout` commands.
"""
