"""Several sources mixed by weights."""
