"""A Kubernetes cluster of two nodes on this machine, for `make test-k8s`. `python -m tests.k8s.cluster up` starts it.

Real: etcd, API server, controllers, scheduler, kubelets, containerd, containers. Both nodes share the kernel and the network
namespace of this machine. No NetworkPolicy is enforced: the CNI plugin `ptp` knows none.
"""
