"""What a process and its fetcher say to each other: frames, messages, and the values in them."""
