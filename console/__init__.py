"""The console: a web page in which a team sees whether its search is good, and why (docs/console.md).

A process of its own and a client like any other: browser → console → SDK → server, or a store in this process.

application.py   what answers which path
browsers.py      which pages may call: Host, Origin, Fetch Metadata
sessions.py      who calls: keys in this process's memory, cookies without meaning in the browser
pages.py         the files of the page and the headers that bind it
gateway/         messages of the wire contract as JSON, passed on to the SDK's transport
files/           files dropped on an index: uploads, jobs that write them; rows as a file
history/         what the server measured of itself while somebody looked
judgement_sets.py what the page needs of judgement sets, which another room keeps
judging/         calls about them
map/             maps by UMAP, in a process of their own
web/             the page: ES modules that are served as they are
"""
