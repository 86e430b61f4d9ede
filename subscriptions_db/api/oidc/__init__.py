"""Access to the API by tokens of an OpenID Connect provider.

In: the token of a request, and the provider's keys. Out: the principal of the request, or a refusal. Runs in the API.
"""
