"""Everything that runs in Spark or controls Spark. docs/architecture.md shows the steps of the lanes as a picture."""
