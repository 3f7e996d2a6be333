"""Lexical search: the analyser, the inverted index and BM25."""
