"""Which setting comes next, and what is known of those that were read."""
