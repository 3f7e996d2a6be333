"""Where the rows of a search are, for the steps after the search of segments."""
