"""Datasets of videos and of images with text: readers and converters. See `docs/recipes.md`."""
