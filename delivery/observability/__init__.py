"""Format logs, declare metrics, judge health, serve metrics and health over HTTP, and compare workers' clocks.

In: reports of lanes, of the archive and of the API. Out: log lines, `/metrics`, `/healthz`, `/readyz`. Runs on the driver, in
the commands, in `fanout archive` and in the API. `logs` and `safe_text` also run in the executors.
`listening` also opens the sockets of the API and of the real-time lane's server.
"""
