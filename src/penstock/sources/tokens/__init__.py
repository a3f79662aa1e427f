"""Text → tokens."""
