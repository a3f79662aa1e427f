"""Datasets of images that people know: readers and converters. See `docs/recipes.md`."""
