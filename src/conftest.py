"""Which modules are not gone through for doctests: those that import a framework which is not part of `make setup`."""

collect_ignore = [
    f"grouprl/integrations/{name}.py" for name in ("trl", "verl", "skyrl", "tunix", "vllm_weights")
]
