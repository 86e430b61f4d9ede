"""Run the lanes in Spark, and control Spark. docs/architecture.md shows the steps of the lanes as a picture."""
