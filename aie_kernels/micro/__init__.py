"""Copies that measure the data path."""
