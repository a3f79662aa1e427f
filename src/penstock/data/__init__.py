"""Datasets: samples by number, or one after another."""
