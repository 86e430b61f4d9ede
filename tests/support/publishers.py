"""A publisher that keeps its messages, in place of the client of Kafka."""


class Publisher:
    """Keeps the published messages."""

    def __init__(self, _):
        self.published = []

    def publish(self, message):
        self.published.append(message)

    def flush(self):
        pass
