"""What is foreign: other people's APIs, frameworks, databases and schedulers, each an extra or a plug-in.

Vector stores of frameworks over the SDK (LangChain, Haystack, LlamaIndex, Beam's RAG package and mteb), the managed
service's APIs and OpenAI's on a server, readers of other databases, clusters on Ray, and tools for agents. This package
imports none.
"""
