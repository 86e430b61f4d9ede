"""Write one order by Confluent's serializers of Avro, JSON Schema and Protobuf, which register the order's schemas."""

import datetime as dt
import json

from confluent_kafka.schema_registry import avro, json_schema, protobuf
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2

from tests.support import framing

TOPIC = "events.order.created"
ORDER = {"id": "order-17", "tenant_id": "t1", "amount": 700}
AVRO = {
    "type": "record", "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "tenant_id", "type": "string"}, {"name": "amount", "type": "int"}],
}  # fmt: skip
MONEY_TEXT = """
syntax = "proto3";
package shop;
message Money { int32 amount = 1; }
"""
ORDER_TEXT = """
syntax = "proto3";
package shop;
import "shop/money.proto";
import "google/protobuf/timestamp.proto";
message Other { string x = 1; }
message Order {
  string id = 1;
  string tenant_id = 2;  // the customer's tenant
  int32 amount = 3 [deprecated = true];
  Money price = 4;
  google.protobuf.Timestamp at = 5;
}
"""
PROTOBUF_ONLY = {"price": {"amount": 7}, "at": "2026-05-01T10:00:00Z"}


def by_avro(client, value, schema=AVRO, topic=TOPIC):
    """Write Avro. `schema` is a schema as a dictionary, or a Schema with references."""
    given = json.dumps(schema) if isinstance(schema, dict) else schema
    return avro.AvroSerializer(client, given)(value, SerializationContext(topic, MessageField.VALUE))


def by_json_schema(client, value, topic=TOPIC):
    schema = {"title": "Order", "type": "object", "properties": {"amount": {"type": "integer"}}}
    return json_schema.JSONSerializer(json.dumps(schema), client)(value, SerializationContext(topic, MessageField.VALUE))


def by_protobuf(client, value, topic=TOPIC):
    """Write the second message of a file that imports another file and a file of Google's."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    money = framing.proto("shop/money.proto", Money={"amount": (1, 5, "")})
    order = framing.proto(
        "shop/order.proto",
        "shop/money.proto",
        "google/protobuf/timestamp.proto",
        Other={"x": (1, 9, "")},
        Order={
            "id": (1, 9, ""), "tenant_id": (2, 9, ""), "amount": (3, 5, ""), "price": (4, 11, ".shop.Money"),
            "at": (5, 11, ".google.protobuf.Timestamp"),
        },
    )  # fmt: skip
    for file in (money, order):
        pool.AddSerializedFile(file.SerializeToString())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**value)
    message.price.amount = 7
    message.at.FromDatetime(dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC))
    serialize = protobuf.ProtobufSerializer(type(message), client, {"use.deprecated.format": False})
    return serialize(message, SerializationContext(topic, MessageField.VALUE))


def with_field(**field):
    """Return the Avro schema with one more field, its first one. So its values do not decode by the older schema."""
    return {**AVRO, "fields": [field, *AVRO["fields"]]}
