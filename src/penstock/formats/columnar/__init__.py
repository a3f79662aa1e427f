"""Parquet and Arrow: unpacked once into a file of plain buffers, which is read with NumPy alone."""
