"""Changes to the registry.

In: a manifest, or one action on one endpoint. Out: rows written in one transaction, with an entry in the audit log. Runs in
the command and in the API. The driver disables endpoints, and the driver and `fanout archive` read the revision.
"""
