"""The YAML document of `fanout apply`.

In: text. Out: a checked manifest, or every mistake with its line. Pure. Runs in `fanout` commands and in the API.
"""
