"""Horovod's names for what launchers share; libraries that start jobs themselves import them."""
