"""Accept tokens of an OpenID Connect provider in place of API keys.

In: the token of a request, and the provider's keys. Out: the principal of the request, or a refusal. Runs in the API.
"""
