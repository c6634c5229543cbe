"""Another machine, played by an sshd of the tests\x27 own on loopback."""
