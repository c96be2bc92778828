"""Where PySpark finds the data source by itself."""
