"""The checkpoint of the lanes: where it lies, and which driver may use it."""
