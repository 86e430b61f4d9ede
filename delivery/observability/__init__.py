"""Logs, metrics, health and the HTTP endpoints that show them.

In: what the lanes report. Out: log lines, `/metrics`, `/healthz`, `/readyz`. Runs on the driver and in the commands.
"""
