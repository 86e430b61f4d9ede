"""Java, the jars, and the archive of their classes.

In: deploy/jars. Out: a verified set of jars, and a Java that Spark runs on.
"""
