"""The commands: what each is called, takes and prints.

In: the words of a command line. Out: text or JSON, and an exit status.
"""
