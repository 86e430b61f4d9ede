"""Find Java, download and verify the jars, and build the archive of Spark's classes.

In: deploy/jars. Out: verified jars, and a Java that Spark supports.
"""
