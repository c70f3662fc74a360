"""For all tests: no property has a time limit, because a busy machine is no counterexample."""

from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
