"""Which requests run, when and on which threads: admission, permits, coalescing, cores."""
