"""Closed forms of the operators' costs."""
