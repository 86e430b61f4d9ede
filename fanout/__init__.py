"""The `fanout` command, the local stack, and the demo."""
