"""Which modules are not gone through for doctests: those that import a framework which is not part of `make setup`."""

collect_ignore = ["grouprl/integrations/trl.py"]
