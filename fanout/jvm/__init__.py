"""Find Java, download and verify the jars, and archive Java classes for faster starts.

In: deploy/jars. Out: verified jars, the class archives, and a Java that Spark supports. Runs in `fanout` commands and on the
driver, before Spark.
"""
