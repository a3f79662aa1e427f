"""Batches for training loops."""
