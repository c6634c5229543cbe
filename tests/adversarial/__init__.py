"""One file per goal of an attacker; each attack is first shown to work."""
