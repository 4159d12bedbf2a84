"""One hypothesis profile for the laws: enough examples to meet every branch, few enough for each commit."""

from hypothesis import settings

settings.register_profile("laws", deadline=None, max_examples=150)
settings.load_profile("laws")
