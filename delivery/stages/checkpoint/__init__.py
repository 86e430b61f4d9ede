"""The checkpoint of the lanes: its folder or store, the one driver that may use it, and its repair."""
