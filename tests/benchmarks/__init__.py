"""The benchmarks behind the budgets; run them with ``./dev bench``."""
