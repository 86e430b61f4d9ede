"""Keep a second driver out of the lanes' checkpoint, by a lock of the operating system or a Lease of Kubernetes.

In: settings, and answers of the API server of Kubernetes. Out: a lock, which ends the process if another driver has taken it.
Runs on the driver, and in commands that change the checkpoint.
"""
