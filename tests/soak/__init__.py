"""Many commands, many clients, and nothing left of them."""
