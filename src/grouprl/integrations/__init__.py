"""grouprl inside other trainers: one module a framework, imported only when asked for.

    from grouprl.integrations.trl import GRPOTrainer

Importing this package imports none of them. A module checks, as it is imported, that its framework is there and of a
version that it was written against. `grouprl doctor` prints what it would find.
"""
