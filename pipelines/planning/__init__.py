"""What a build will do, before any worker starts."""
