"""Recipes of sources and stages."""
