"""The health of endpoints, and the operational events about it.

In: signals from records and the registry. Out: endpoint health, and events in an outbox until they are published. Runs in
`fanout archive`.
"""
