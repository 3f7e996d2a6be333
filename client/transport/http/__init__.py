"""HTTP/1.1 as the client needs it: a codec over llhttp, connections for one call at a time, and their pool."""
