"""Imports and exports of data objects: folders of JSON lines."""
