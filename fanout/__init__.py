"""The commands of `fanout`, the local stack and the demo that some of them run, and the generator of the documents."""
