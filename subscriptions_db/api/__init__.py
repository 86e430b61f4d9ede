"""The HTTP API of customers, operators and publishers: register endpoints and subscriptions, read results, publish events."""
