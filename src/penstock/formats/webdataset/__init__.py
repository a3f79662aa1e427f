"""Tar files as WebDataset writes them: members with one key, one after the other, are a sample."""
