"""Load tests: measure the whole platform under load. Run `python -m load_tests --help`.

In: the name of a scenario, and options. Out: figures, and an exit code that says if the figures meet their bounds. Runs in a
process of its own, which starts the platform in other processes.
"""
