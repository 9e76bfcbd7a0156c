"""What the files of an array say; pure."""
