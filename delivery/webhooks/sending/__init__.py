"""Make one attempt at a delivery or a batch: build payload and headers, sign, send the request, and return the result.

In: a delivery or a batch. Out: an `Attempt`. Runs in the executors, and in the API for test events. `request` and `signing`
also check settings where endpoints are registered or read: in the API, the commands, the archive and on the driver. The
archive also computes `webhook-id`s with `payload`, for replays. `handshake` builds requests for a receiver's permission in the
API and the commands. Where endpoints are read, `handshake` also applies the rate that a receiver has permitted.
"""
