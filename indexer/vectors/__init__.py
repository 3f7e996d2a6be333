"""Arrays and exact search: scores of vectors, and the best k of them in a total order."""
