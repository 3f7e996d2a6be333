"""Former releases: their stores, their code, and both on one store in turns (docs/adr/0055-levels-of-stores.md)."""
