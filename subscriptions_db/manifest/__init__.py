"""Parse and check the YAML document of `fanout apply`, the manifest.

In: text. Out: a checked manifest, or every mistake with its line. Pure, except that `lint` reads the
registry. Runs in `fanout` commands and in the API.
"""
