"""What tests share: accounts, staged installs, running daemons, leak checks."""
