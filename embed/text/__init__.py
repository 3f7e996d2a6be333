"""Documents as text: chunking, transcripts, and what is embedded of a document."""
