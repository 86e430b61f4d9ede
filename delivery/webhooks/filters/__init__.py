"""Filter events by their content.

In: the pattern of a subscription, and the document of an event: its attributes, and its payload below `data`. Out: True if the
event matches. Runs in the executors, and in the archive for replays. The API, the commands and the driver check patterns by the
same code. The API and the commands also explain matches by this code.
"""
