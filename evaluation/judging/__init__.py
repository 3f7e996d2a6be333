"""Sets of questions that several people judge at once: their files, who marked what, and the measures on them.

growing_files.py  JSON lines that are added to while others read
marks.py          who marked what and when, and which marks count
sets.py           the folder of sets
measured.py       how well searches answer a set
"""
