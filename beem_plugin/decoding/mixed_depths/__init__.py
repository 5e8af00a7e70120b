"""Greedy decoding on a GPU in which every launch takes each caption one block further, whatever its token's depth."""
