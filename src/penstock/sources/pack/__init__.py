"""Tokenized documents packed into rows of one length."""
