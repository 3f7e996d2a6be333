"""Clusters that Ray places: actors that own servers, and the commands that start and end them."""
