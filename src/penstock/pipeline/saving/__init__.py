"""Samples of a source → files of a common format, with a manifest."""
