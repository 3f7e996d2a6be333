"""Models on disk to modules in memory: found, checked, loaded, remembered."""
