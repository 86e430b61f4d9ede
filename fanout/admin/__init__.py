"""Commands of operators: register, diagnose, accept a loss, smoke test.

In: settings and a registry. Out: changes, findings, and instructions to repair each fault.
"""
