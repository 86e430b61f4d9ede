"""The `fanout` command: what a person runs, the local stack and the demo."""
