"""A Kafka cluster that loses its last active broker: requests for metadata get an empty list of brokers, as after a pause."""

import contextlib
import socketserver
import struct
import threading

API_VERSIONS, METADATA = 18, 3
UNSUPPORTED_VERSION = 35
NULL = struct.pack(">h", -1)


class Connection(socketserver.StreamRequestHandler):
    """Answers with the oldest versions: ApiVersions 0, Metadata 0 and 1."""

    def handle(self):
        while len(size := self.rfile.read(4)) == 4:
            request = self.rfile.read(struct.unpack(">i", size)[0])
            kind, version, number = struct.unpack(">hhi", request[:8])
            answer = struct.pack(">i", number) + (self.versions(version) if kind == API_VERSIONS else self.metadata(version))
            self.wfile.write(struct.pack(">i", len(answer)) + answer)

    def versions(self, version):
        known = struct.pack(">ihhhhhh", 2, API_VERSIONS, 0, 0, METADATA, 0, 1)
        return struct.pack(">h", UNSUPPORTED_VERSION if version else 0) + known

    def metadata(self, version):
        address, port = self.server.server_address
        broker = struct.pack(">ih", 1, len(address)) + address.encode() + struct.pack(">i", port) + (NULL if version else b"")
        self.server.asked += 1
        is_active = self.server.asked == 1
        brokers = struct.pack(">i", 1) + broker if is_active else struct.pack(">i", 0)
        controller = struct.pack(">i", 1 if is_active else -1) if version else b""
        return brokers + controller + struct.pack(">i", 0)  # no topics


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    asked = 0


@contextlib.contextmanager
def running():
    """Yield the address of the cluster. Its broker is active for the first request only."""
    with Server(("127.0.0.1", 0), Connection) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
