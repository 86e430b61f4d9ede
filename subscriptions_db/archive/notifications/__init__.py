"""The health of endpoints, and the operational events about it.

In: observations about endpoints, from records of the topics and from the registry. Out: endpoint health, and events in an
outbox until they are published. Runs in `fanout archive`.
"""
