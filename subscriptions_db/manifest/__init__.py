"""Parse and check the YAML document of `fanout apply`, the manifest.

In: a document, as text or parsed. Out: a checked manifest, or the mistakes of all rows, each with its path, and for text with
its line. Pure, except that `lint` reads the registry. Runs in `fanout` commands and in the API.
"""
