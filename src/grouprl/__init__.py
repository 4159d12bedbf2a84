"""grouprl: group-relative policy optimisation (GRPO) for language models."""
