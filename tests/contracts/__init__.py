"""What others rely on, as listings that `make contracts` records."""
