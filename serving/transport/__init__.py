"""How requests come in: the lifecycle that all wires share, and one folder for each wire."""
