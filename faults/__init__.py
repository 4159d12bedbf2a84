"""`make faults`: what a run goes through in a bad night, done to it on purpose, and what must be true afterwards."""
