"""A dataset as a source, and sources as streams of a dataset."""
