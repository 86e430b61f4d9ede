"""`fanout demo`: the whole platform on one machine, and the proof that nothing is lost."""
