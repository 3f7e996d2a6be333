"""Devices that run a model: one protocol, and one module for each kind."""
