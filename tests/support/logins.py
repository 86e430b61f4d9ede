"""The settings of clients that log in at a broker with passwords."""


def login(broker, user, password):
    """Return the fields of the settings area `kafka` for a client with this password."""
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": broker.security_protocol,
        "sasl_mechanism": "PLAIN",
        "sasl_username": user,
        "sasl_password": password,
    }
