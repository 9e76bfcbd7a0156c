"""What keeps a log short: jobs, and the policies that say when each is due."""
