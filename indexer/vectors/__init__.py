"""Arrays and exact search: scores of vectors, and the best k in a total order."""
