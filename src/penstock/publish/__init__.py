"""Samples → shards → a published dataset."""
