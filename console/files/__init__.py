"""Files that are dropped on an index, and files of what an index has.

uploads.py    files that callers have sent, in temporary folders
formats.py    what reads and writes them, which is handed in
jobs.py       writes what they have, and keeps what was refused
calls.py      the calls of the page
"""
