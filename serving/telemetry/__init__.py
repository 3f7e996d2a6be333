"""What a server tells about itself: metrics, traces, logs, and the statistics of a query."""
