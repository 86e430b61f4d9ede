"""`fanout demo`: run the whole platform on one machine, and prove that nothing is lost."""
