"""The runners of CI systems, played as they play it."""
