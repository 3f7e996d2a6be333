"""Planning of a build, before any worker starts."""
