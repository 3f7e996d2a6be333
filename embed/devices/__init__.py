"""Where a model runs: one protocol, and one module for each kind of accelerator."""
