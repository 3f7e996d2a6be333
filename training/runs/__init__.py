"""Runs of a training: steps that depend on their number alone, and checkpoints from which a killed run goes on."""
