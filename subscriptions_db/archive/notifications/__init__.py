"""Decide on operational events: about the health of endpoints, API keys that expire soon, and reached quotas.

In: observations from records of the topics, from the registry and from the archive. Out: endpoint health, reached quotas, and
events in an outbox until they are published. Runs in `fanout archive`.
"""
