"""The error of the cluster: what is missing or broke, and the fix."""


class ClusterError(Exception):
    """The cluster cannot do what was asked. The message names the fix."""
