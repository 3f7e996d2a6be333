"""What a server measured of itself in the last 15 minutes and 24 hours, while somebody looked: a ring in memory.

points.py    two samples of its metrics → rates, quantiles and gauges
ring.py      the last points, by series
watches.py   polls, with the rights of who looks
calls.py     what the page asks for
"""
