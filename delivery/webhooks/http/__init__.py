"""Send HTTP/1.1 requests to endpoints and token servers.

In: a target, headers and a body. Out: a bounded response, or an error of `delivery.errors`. Addresses that are not public are
refused, unless the settings allow them. Runs in the executors, and in the API and the commands for test events and handshakes.
`guard`, `origin` and `tls` also run where an endpoint's settings are checked: in the API, the commands, the driver, and
programs that read `GET /v1/snapshot`.
"""
