"""bashd-sh under the programs that call a shell."""
