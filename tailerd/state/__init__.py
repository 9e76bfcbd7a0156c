"""The files that a daemon saves between two runs; only one daemon at a time can write them."""
