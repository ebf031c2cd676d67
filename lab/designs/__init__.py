"""Designs that nothing executes: one folder each, with who wants them."""
