"""Documents to passages: chunking, transcripts, and the vectors of a document's passages."""
