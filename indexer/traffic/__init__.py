"""The log of queries and of feedback on their answers: its rows, its files in a store, and the keys of its ids."""
