"""What the kernel is asked to do, asked of a real kernel."""
