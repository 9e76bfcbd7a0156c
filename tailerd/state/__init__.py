"""What a daemon saves between two runs, in files that only one daemon at a time can write."""
