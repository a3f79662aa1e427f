"""Bytes under a URL: the seam to every place that data is kept."""
