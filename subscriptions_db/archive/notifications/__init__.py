"""Track the health of endpoints, and decide on operational events for customers.

In: observations about endpoints, from records of the topics and from the registry. Out: endpoint health, and events in an
outbox until they are published. Runs in `fanout archive`.
"""
