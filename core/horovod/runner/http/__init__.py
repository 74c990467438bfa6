"""Where ranks meet that another launcher has started, under Horovod's name for it."""
