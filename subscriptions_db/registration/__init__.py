"""Changes to the registry.

In: a manifest, or one action on one endpoint. Out: rows written in one transaction, with a note in the audit log. Runs in the
commands, in the API and, to disable endpoints, on the driver.
"""
