"""The acceptance cases of the contract, one test each, named after the case."""
