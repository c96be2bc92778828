"""The data pipeline on Apache Spark: source and sink, pipeline, and the experiment lab."""
