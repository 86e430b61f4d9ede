"""Load tests: the whole platform under load, and what it costs. Run `python -m load_tests --help`."""
