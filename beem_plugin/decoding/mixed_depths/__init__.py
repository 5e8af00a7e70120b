"""Greedy decoding on a GPU in which every launch computes one block of each caption, for tokens at different depths."""
