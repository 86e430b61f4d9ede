"""`fanout demo`: run the whole platform on one machine, and prove that nothing is lost.

In: a seed, and a number of events. Out: an account of every due delivery, and an exit code. Runs in `fanout` commands, which
start the platform in processes of its own.
"""
