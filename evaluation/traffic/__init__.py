"""What the log of queries says: figures by day, and judgements that users made by their clicks."""
