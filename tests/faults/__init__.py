"""What breaks under load, and what is left of it afterwards: nothing."""
