"""The commands of `fanout`, and the local stack and the demo that some of them run."""
