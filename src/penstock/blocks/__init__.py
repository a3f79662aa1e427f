"""What moves from one place to the next: some rows as one value, and the protocol of what makes it."""
