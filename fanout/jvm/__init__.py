"""Find Java, download and verify the jars, and build the archive of Spark's classes.

In: deploy/jars. Out: verified jars, the class archive, and a Java that Spark supports. Runs in `fanout` commands and on the
driver, before Spark.
"""
