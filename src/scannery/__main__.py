"""`python -m scannery`: the command line."""

# Nothing is defined here: spawned processes import this module under another name, and could not unpickle it.
if __name__ == "__main__":
    from scannery.cli.main import run

    run()
