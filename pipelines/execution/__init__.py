"""The chain of stages, the runners that execute it, and failures across workers."""
