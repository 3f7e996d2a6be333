"""Vector stores of frameworks over the SDK: each module is an extra, and imports its framework.

LangChain, Haystack, LlamaIndex, Beam's RAG package and mteb. This package itself imports none of them.
"""
