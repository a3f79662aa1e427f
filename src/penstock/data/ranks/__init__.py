"""What the ranks of a job tell each other, besides what the launcher says."""
