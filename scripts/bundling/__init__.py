"""The bundle: one tar with everything that a machine without a network needs,
and what a recipient has to know about it. `scripts/bundle` is its command.
"""
