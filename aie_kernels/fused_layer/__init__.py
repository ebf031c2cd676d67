"""A whole decoder layer for one token."""
