"""Load tests: measure the whole platform under load. Run `python -m load_tests --help`."""
