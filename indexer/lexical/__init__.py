"""Words: the analyser, the inverted index and BM25."""
