"""Change the registry, and read its rows.

In: a manifest, or an action on endpoints. Out: rows written in one transaction; or rows as `fanout get` and the API show them.
Runs in `fanout` commands and in the API. The driver uses this package to disable endpoints; the driver and `fanout archive`
also read the registry's revision with it.
"""
