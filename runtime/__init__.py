"""What servers and live updates stand on: request errors, deadlines, retries, absolute paths, a bounded cache."""
