"""The suite is a package, so that its parts can import one another by name."""
