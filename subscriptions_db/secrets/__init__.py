"""Secrets of customers, sealed at rest.

In: secrets and a key ring. Out: sealed bytes, and back. Runs where the registry is read or written.
"""
