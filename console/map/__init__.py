"""Maps of an index by UMAP, which takes too long for a call: the server's own map (`Project`) is there at once.

maps.py            reads a sample of the vectors, has it placed, and keeps the positions
umap_process.py    the process that places it
calls.py           the call of the page
"""
