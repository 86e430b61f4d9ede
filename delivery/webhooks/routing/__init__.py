"""Find the subscriptions to which an event is due.

In: an event and the registry at one revision. Out: the endpoints and subscriptions that match. Runs in the executors,
and in the archive for replays. The API and the commands explain matches. The driver reads the registry and broadcasts it, or
lets the executors look it up in Postgres.
"""
