"""Change how an index is encoded or cut while it is served: a mirror with another spec, which takes its place.

A mirror is an index of its own with the same datapoints. It is filled from a version (filling.py), and from then on has
one mutation for each in the log of the mirrored index, with the same sequence (following.py). So both can be exchanged
at any sequence (switching.py), and exchanged again: the former content goes on as the mirror.
"""
