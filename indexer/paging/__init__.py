"""Pages of Parquet files: where they are, and the vectors in them, read by ranges and without PyArrow."""
