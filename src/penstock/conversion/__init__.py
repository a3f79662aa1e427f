"""Anything that gives rows → a dataset, by named tasks that any engine may run."""
