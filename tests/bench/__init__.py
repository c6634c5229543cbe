"""The benchmark behind the budgets; run it with ``./dev bench``."""
