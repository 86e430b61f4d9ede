"""A Kafka record becomes an event with the payload's own bytes, or is rejected with a reason."""

import base64

import orjson
import pytest

from delivery import errors
from delivery.webhooks.events import attributes, parsing
from tests.support import builders

LAYOUT = parsing.Layout()
BINARY = (
    ("ce_specversion", b"1.0"),
    ("ce_id", b"e9"),
    ("ce_type", b"order.paid"),
    ("ce_source", b"/shop"),
    ("ce_tenantid", b"t2"),
    ("ce_subtenantid", b"100"),
    ("ce_time", b"2026-05-01T10:00:00Z"),
    ("content-type", b"application/json"),
)
STRUCTURED = (("content-type", b"application/cloudevents+json; charset=UTF-8"),)


def structured(**members):
    document = {"specversion": "1.0", "id": "e9", "type": "order.paid", "source": "/shop", "tenantid": "t2"}
    return orjson.dumps(document | members)


def test_plain_json_is_mapped_by_the_layout():
    layout = parsing.Layout(tenant_path=("meta", "org"), sub_tenant_path=("meta", "dept"), type_path=("kind",))
    value = b'{"id":"e1","kind":"order.paid","meta":{"org":2,"dept":100},"time":"2026-01-01T00:00:00Z"}'
    event = parsing.parse(builders.record(value=value), layout)
    assert (event.event_id, event.event_type, event.tenant_id, event.sub_tenant_id) == ("e1", "order.paid", "2", "100")
    assert event.data == value


def test_plain_json_without_a_type_gets_it_from_the_topic():
    assert parsing.parse(builders.record(topic="events.order.item.added"), LAYOUT).event_type == "order.item.added"


def test_an_event_without_an_id_gets_the_same_id_at_each_read():
    record = builders.record(value=b'{"tenant_id":"t1"}', partition=3, offset=42)
    assert {parsing.parse(record, LAYOUT).event_id for _ in range(2)} == {"events.order.created:3:42"}


def test_an_event_without_a_time_gets_its_records_time():
    assert parsing.parse(builders.record(appended_at_ms=1_700_000_000_123), LAYOUT).time == "2023-11-14T22:13:20.123Z"


def test_a_binary_cloud_event_keeps_its_payload_bytes():
    value = b'{ "amount" : 1.50 ,"b":[ ] }'
    event = parsing.parse(builders.record(value=value, headers=BINARY), LAYOUT)
    assert (event.event_id, event.event_type, event.source) == ("e9", "order.paid", "/shop")
    assert (event.tenant_id, event.sub_tenant_id, event.time) == ("t2", "100", "2026-05-01T10:00:00Z")
    assert event.data == value


@pytest.mark.parametrize(
    "raw",
    [b'{ "a" : 1.50, "b":"}\\" \xc3\xa9" }', b"[1, 2 ,3]", b'"text"', b"-1.0e+3", b"null", b"true"],
)
def test_a_structured_cloud_event_keeps_the_bytes_of_its_data(raw):
    value = b'{"specversion":"1.0", "id":"e9","type" :"order.paid","source":"/shop","tenantid":"t2",\n "data" :%s }' % raw
    event = parsing.parse(builders.record(value=value, headers=STRUCTURED), LAYOUT)
    assert event.data == raw
    assert event.content == orjson.loads(raw)


def test_of_duplicate_data_members_bytes_and_content_agree():
    value = structured()[:-1] + b',"data":1,"data":2}'
    event = parsing.parse(builders.record(value=value, headers=STRUCTURED), LAYOUT)
    assert (event.data, event.content) == (b"2", 2)


def test_a_structured_cloud_event_may_carry_its_json_in_base64():
    value = structured(data_base64=base64.b64encode(b'{"a": 1}').decode())
    assert parsing.parse(builders.record(value=value, headers=STRUCTURED), LAYOUT).data == b'{"a": 1}'


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(None, "tombstone", id="tombstone"),
        pytest.param(b" \n", "empty", id="empty"),
        pytest.param(b"x" * 262_145, "too_large", id="one byte over the bound"),
        pytest.param(b'{"tenant_id":"t1","a":"%s"}' % (b"x" * 5_000_000), "too_large", id="5 MB"),
        pytest.param(b"{", "not_json", id="not JSON"),
        pytest.param(b"[1]", "not_json", id="not an object"),
        pytest.param(b'{"tenant_id":"\xff"}', "not_json", id="invalid UTF-8"),
        pytest.param(b'{"tenant_\xff":"t1"}', "not_json", id="invalid UTF-8 in a key"),
        pytest.param(b'{"tenant_id":"t1","a":"\xed\xa0\x80"}', "not_json", id="a surrogate in UTF-8"),
        pytest.param(b'{"tenant_id":"t1","a":"\\ud800"}', "not_json", id="lone surrogate"),
        pytest.param(b'{"tenant_id":"t1","a":NaN}', "not_json", id="NaN"),
        pytest.param(b'{"tenant_id":"t1","a":-Infinity}', "not_json", id="Infinity"),
        pytest.param(b'{"tenant_id":"t1","a":1%s}' % (b"0" * 400), "not_json", id="a number beyond any"),
        pytest.param(b'{"tenant_id":"t1","a":1%s}' % (b"0" * 5000), "not_json", id="a number of 5,001 digits"),
        pytest.param(b'\xef\xbb\xbf{"tenant_id":"t1"}', "not_json", id="byte order mark"),
        pytest.param('{"tenant_id":"t1"}'.encode("utf-16"), "not_json", id="UTF-16"),
        pytest.param(b'{"tenant_id":"t1"} {"tenant_id":"t1"}', "not_json", id="two documents"),
        pytest.param(b'{"tenant_id":"t1"', "not_json", id="cut off"),
        pytest.param(b"\0" * 10, "not_json", id="NUL"),
        pytest.param(b"\x1f\x8b\x08", "not_json", id="compressed"),
        pytest.param(b"[" * 10_000 + b"]" * 10_000, "not_json", id="10,000 levels"),
        pytest.param(b'{"tenant_id":"t1","a":%s1%s}' % (b'{"a":' * 10_000, b"}" * 10_000), "not_json", id="10,000 objects"),
        pytest.param(b'{"id":"e1"}', "missing_attribute", id="no tenant"),
        pytest.param(b'{"tenant_id":""}', "missing_attribute", id="empty tenant"),
        pytest.param(b'{"tenant_id":true}', "bad_attribute", id="tenant is a boolean"),
        pytest.param(b'{"tenant_id":{}}', "bad_attribute", id="tenant is an object"),
        pytest.param(b'{"tenant_id":null}', "missing_attribute", id="tenant is null"),
        pytest.param(b'{"tenant_id":1.0}', "bad_attribute", id="tenant is a fraction"),
        pytest.param(b'{"tenant_id":18446744073709551616}', "bad_attribute", id="tenant is 2^64, which no parser keeps"),
        pytest.param(b'{"tenant_id":"t1","id":["e1"]}', "bad_attribute", id="id is a list"),
        pytest.param(b'{"tenant_id":"t1","type":7.5}', "bad_attribute", id="type is a fraction"),
        pytest.param(b'{"tenant_id":"t\\u0000"}', "bad_attribute", id="NUL in the tenant"),
        pytest.param(b'{"tenant_id":"t1","id":"\\u202e"}', "bad_attribute", id="id that turns the line round"),
        pytest.param(b'{"tenant_id":"a\\nb"}', "bad_attribute", id="line break in the tenant"),
        pytest.param(b'{"tenant_id":"t1","id":"%s"}' % (b"x" * 1025), "bad_attribute", id="endless id"),
    ],
)
def test_a_record_without_an_event_is_rejected_with_a_reason(value, reason):
    with pytest.raises(errors.EventRejected) as rejected:
        parsing.parse(builders.record(value=value), LAYOUT)
    assert rejected.value.reason == reason


@pytest.mark.parametrize(
    ("headers", "value", "reason"),
    [
        pytest.param((*BINARY[1:], ("ce_specversion", b"0.3")), b"{}", "unsupported", id="old specversion"),
        pytest.param((*BINARY[:-1], ("content-type", b"xml")), b"<a/>", "unsupported", id="content type is no media type"),
        pytest.param(BINARY, b"<a/>", "not_json", id="payload says JSON and is not"),
        pytest.param(tuple(h for h in BINARY if h[0] != "ce_tenantid"), b"{}", "missing_attribute", id="no tenant"),
        pytest.param((*BINARY, ("ce_x", b"\xff")), b"{}", "bad_attribute", id="header is not UTF-8"),
        pytest.param((*BINARY, ("ce_tenantid", b"t\0")), b"{}", "bad_attribute", id="NUL in an attribute"),
        pytest.param((*BINARY, ("ce_id", b"")), b"{}", "missing_attribute", id="empty id"),
        pytest.param((*BINARY, ("content-type", b"\xff")), b"{}", "bad_attribute", id="content type is not UTF-8"),
        pytest.param((*BINARY, ("ce_specversion", b"\xff")), b"{}", "bad_attribute", id="specversion is not UTF-8"),
        pytest.param(BINARY, b'{"a":%s}' % (b"[" * 10_000), "not_json", id="payload of 10,000 levels"),
        pytest.param(STRUCTURED, b"[]", "not_json", id="structured but an array"),
        pytest.param(STRUCTURED, b"\xef\xbb\xbf" + structured(), "not_json", id="structured with a byte order mark"),
        pytest.param(
            STRUCTURED,
            structured()[:-1] + b',"data":%s1%s}' % (b"[" * 10_000, b"]" * 10_000),
            "not_json",
            id="structured with 10,000 levels",
        ),
        pytest.param(
            STRUCTURED,
            structured()[:-1] + b',"data":%s1%s}' % (b"[" * 1_020, b"]" * 1_020),
            "not_json",
            id="structured, deeper than the scanner goes though not than the parser",
        ),
        pytest.param(STRUCTURED, structured(id=None), "missing_attribute", id="structured without an id"),
        pytest.param(STRUCTURED, structured(source=["/shop"]), "bad_attribute", id="source is a list"),
        pytest.param(STRUCTURED, structured(specversion=1.0), "unsupported", id="specversion is a number"),
        pytest.param(STRUCTURED, structured(data_base64="%%"), "bad_attribute", id="bad base64"),
        pytest.param(STRUCTURED, structured(data_base64="é"), "bad_attribute", id="base64 beyond ASCII"),
        *[
            pytest.param(STRUCTURED, structured(data_base64=wrong), "bad_attribute", id=f"data_base64 is {wrong!r}")
            for wrong in (None, 5, True, [], {})
        ],
        pytest.param(STRUCTURED, structured(data_base64="/w=="), "not_json", id="base64 of what is not JSON"),
        pytest.param((("content-type", b"application/cloudevents-batch+json"),), b"[]", "unsupported", id="a batch"),
        pytest.param((("content-type", b"application/cloudevents+avro"),), b"x", "unsupported", id="other event format"),
    ],
)
def test_a_broken_cloud_event_is_rejected_with_a_reason(headers, value, reason):
    with pytest.raises(errors.EventRejected) as rejected:
        parsing.parse(builders.record(value=value, headers=headers), LAYOUT)
    assert rejected.value.reason == reason


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param((("trace", b"x" * 262_144),), id="a large one"),
        # Two bytes each in Kafka, thirty in the dead letter: once such a record could not be written, and held up everybody.
        pytest.param((("", b""),) * 50_000, id="50,000 empty ones"),
        pytest.param((("\x01" * 50_000, b""),), id="control characters, which JSON writes in six bytes"),
    ],
)
def test_headers_count_as_their_bytes_in_a_dead_letter(headers):
    with pytest.raises(errors.EventRejected) as rejected:
        parsing.parse(builders.record(headers=headers), LAYOUT)
    assert rejected.value.reason == "too_large"


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b'{"tenant_id":"t1","n":9223372036854775808}', id="2^63"),
        pytest.param(b'{"tenant_id":"t1","n":123456789012345678901234567890}', id="more digits than a float keeps"),
        pytest.param(b'{"tenant_id":"t0","tenant_id":"t1"}', id="duplicate keys"),
        pytest.param(b'{"tenant_id":"t1","a":"\\u0000"}', id="NUL in the payload"),
        pytest.param(b'{"tenant_id":"t1","a":%s1%s}' % (b"[" * 1_000, b"]" * 1_000), id="1,000 levels"),
    ],
)
def test_odd_but_valid_json_is_an_event_and_keeps_its_bytes(value):
    """The customer gets the bytes that the producer wrote. Of duplicate keys the last counts, for filters too."""
    event = parsing.parse(builders.record(value=value), LAYOUT)
    assert (event.tenant_id, event.data) == ("t1", value)


def test_a_header_that_is_no_attribute_is_ignored():
    odd = (("", b"\xff"), ("traceparent", b"\xff"), ("ce-subject", b"x"), ("ce_datacontenttype", b"text/plain"))
    event = parsing.parse(builders.record(value=b"{}", headers=(*BINARY, *odd)), LAYOUT)
    assert (event.event_id, event.attributes) == ("e9", ())


class TestFurtherAttributes:
    def binary(self, *headers):
        return parsing.parse(builders.record(value=b"{}", headers=(*BINARY, *headers)), LAYOUT).attributes

    def structured(self, **members):
        return parsing.parse(builders.record(value=structured(**members), headers=STRUCTURED), LAYOUT).attributes

    def test_in_binary_mode_each_header_is_an_attribute_as_text(self):
        """Further attributes were once lost silently."""
        headers = (("ce_subject", "Größe 100%41".encode()), ("CE_Sequence", b"5"), ("ce_traceparent", b""))
        assert self.binary(*headers) == (("subject", "Größe 100%41"), ("sequence", "5"), ("traceparent", ""))

    def test_in_structured_mode_each_member_keeps_its_type(self):
        found = self.structured(subject="s", sequence=5, sampled=True, floor=-(2**31), gone=None, dataschema="")
        assert found == (("subject", "s"), ("sequence", 5), ("sampled", True), ("floor", -(2**31)))

    def test_of_a_duplicate_attribute_the_last_counts(self):
        assert self.binary(("ce_subject", b"a"), ("ce_subject", b"b")) == (("subject", "b"),)

    def test_plain_json_has_no_further_attributes(self):
        record = builders.record(value=b'{"tenant_id":"t1","subject":"s"}', headers=(("ce_subject", b"s"),))
        assert parsing.parse(record, LAYOUT).attributes == ()

    @pytest.mark.parametrize(
        "name", ["", "a_b", "a-b", "Foo!", "\0", "a\r\nwebhook-id: x", "a:", "é", "\u0660", "data", "data_base64", "x" * 8192]
    )
    def test_an_invalid_name_is_rejected(self, name):
        with pytest.raises(errors.EventRejected, match="attribute") as rejected:
            self.binary((f"ce_{name}", b"x"))
        assert rejected.value.reason == "bad_attribute"
        assert len(rejected.value.detail) < 300

    @pytest.mark.parametrize("name", ["Subject", "trace_id", "ID"])
    def test_a_structured_event_has_names_in_lower_case(self, name):
        with pytest.raises(errors.EventRejected, match=f"'{name}' is not a valid name of an attribute"):
            self.structured(**{name: "x"})

    @pytest.mark.parametrize(
        "value", [1.5, 1.0, 2**31, -(2**31) - 1, 2**70, [], {}, "a\nb", "\r", "\x7f", "\x85", "\ufffe", "\ufdd0"]
    )
    def test_a_value_of_another_type_is_rejected(self, value):
        with pytest.raises(errors.EventRejected, match=r"sequence is not valid: use a boolean, .* or text without") as rejected:
            self.structured(sequence=value if value != 2**70 else float(2**70))
        assert rejected.value.reason == "bad_attribute"

    @pytest.mark.parametrize("name", ["subject", "dataschema"])
    @pytest.mark.parametrize("value", [5, True])
    def test_subject_and_dataschema_are_text(self, name, value):
        with pytest.raises(
            errors.EventRejected, match=f"value of {name} is not valid: use text without control characters, sur"
        ):
            self.structured(**{name: value})

    def test_the_number_of_further_attributes_is_bounded(self):
        allowed = {f"a{n}": "x" for n in range(attributes.MAX_ATTRIBUTES)}
        assert dict(self.structured(**allowed)) == allowed
        with pytest.raises(errors.EventRejected, match="more than 32 attributes besides those that every event has"):
            self.structured(**allowed, more=True)

    def test_the_bytes_of_further_attributes_are_bounded(self):
        """The bytes of names and values are counted together, in UTF-8."""
        allowed = "é" * ((attributes.MAX_BYTES - len("subject")) // 2)
        assert self.structured(subject=allowed) == (("subject", allowed),)
        with pytest.raises(errors.EventRejected, match="more than 8192 bytes of attributes"):
            self.structured(subject=allowed + "éé")


def test_a_media_type_is_the_same_in_any_case():
    headers = (("Content-Type", b" Application/CloudEvents+JSON"),)
    assert parsing.parse(builders.record(value=structured(data=1), headers=headers), LAYOUT).event_id == "e9"


@pytest.mark.parametrize(
    "appended_at_ms", [2**63 - 1, -(2**63), 1_700_000_000_000_000], ids=["latest", "earliest", "microseconds"]
)
def test_a_record_time_beyond_the_year_9999_needs_an_event_time(appended_at_ms):
    """Producers set a record's time. One beyond the year 9999 once ended each try of the micro-batch."""
    with pytest.raises(errors.EventRejected) as rejected:
        parsing.parse(builders.record(appended_at_ms=appended_at_ms), LAYOUT)
    assert rejected.value.reason == "bad_attribute"
    record = builders.record(value=b'{"tenant_id":"t1","time":"2026-01-01T00:00:00Z"}', appended_at_ms=appended_at_ms)
    assert parsing.parse(record, LAYOUT).time == "2026-01-01T00:00:00Z"


class TestTopicsOfOneTenant:
    LAYOUT = parsing.Layout(tenant_of_topic=r"events\.of\.([^.]+)\..+")

    @pytest.mark.parametrize(
        ("value", "headers"),
        [
            pytest.param(b'{"tenant_id":"t2"}', (), id="plain"),
            pytest.param(b"{}", BINARY, id="binary"),
            pytest.param(structured(), STRUCTURED, id="structured"),
        ],
    )
    def test_only_events_of_the_topics_tenant_are_accepted(self, value, headers):
        own = builders.record(topic="events.of.t2.orders", value=value, headers=headers)
        assert parsing.parse(own, self.LAYOUT).tenant_id == "t2"
        with pytest.raises(errors.EventRejected) as rejected:
            parsing.parse(own._replace(topic="events.of.t1.orders"), self.LAYOUT)
        assert rejected.value.reason == "tenant_mismatch"
        assert rejected.value.detail.startswith("the topic belongs to tenant t1, and the event names tenant t2: correct")

    @pytest.mark.parametrize("topic", ["events.orders", "other.events.of.t1.orders", "events.of.t1"])
    def test_a_topic_that_does_not_match_has_no_owner(self, topic):
        assert parsing.parse(builders.record(topic=topic, value=b'{"tenant_id":"t2"}'), self.LAYOUT).tenant_id == "t2"


class TestThePlatformsOwnTopic:
    LAYOUT = parsing.Layout(operational_topic="events.fanout.operational", tenant_of_topic=r"events\.of\.([^.]+)\..+")

    def test_the_platform_is_the_tenant_of_the_operational_topic(self):
        record = builders.record(topic="events.fanout.operational", value=b'{"tenant_id":"fanout"}')
        assert parsing.parse(record, self.LAYOUT).tenant_id == "fanout"

    @pytest.mark.parametrize(
        ("topic", "tenant_id", "layout"),
        [
            ("events.orders", "fanout", LAYOUT),
            ("events.of.fanout.x", "fanout", LAYOUT),
            ("events.fanout.operational", "t1", LAYOUT),
            ("events.fanout.operational", "fanout", parsing.Layout()),
        ],
    )
    def test_only_the_platform_has_events_in_its_topic(self, topic, tenant_id, layout):
        record = builders.record(topic=topic, value=b'{"tenant_id":"%s"}' % tenant_id.encode())
        with pytest.raises(errors.EventRejected) as rejected:
            parsing.parse(record, layout)
        assert rejected.value.reason == "tenant_mismatch"


TIMES = ["2026-05-01T10:00:00Z", "2026-05-01t10:00:00.123456789z", "2026-12-31T23:59:60+05:30", "2024-02-29T00:00:00Z"]
NO_TIMES = ["yesterday", "2026-05-01", "2026-05-01 10:00:00Z", "2026-13-01T10:00:00Z", "2026-05-01T10:00:00", "1777629600"]
NO_DAYS = ["2026-02-30T10:00:00Z", "2026-04-31T10:00:00Z", "2026-02-29T10:00:00Z", "2100-02-29T10:00:00Z"]


@pytest.mark.parametrize("time", TIMES)
def test_an_events_time_is_passed_on_as_written(time):
    assert of_binary(time).time == of_plain(time).time == time


@pytest.mark.parametrize("time", NO_TIMES + NO_DAYS)
def test_a_cloud_event_with_an_invalid_time_is_rejected(time):
    """Regression: an invalid time, and later a day that its month does not have, was passed on. Receivers' libraries refused
    the whole event."""
    with pytest.raises(errors.EventRejected, match="RFC 3339") as refused:
        of_binary(time)
    assert refused.value.reason == "bad_attribute"


@pytest.mark.parametrize("time", [*NO_TIMES, 1777629600, 1732528800.5, True, {}, [], "2026-05-01\t10:00:00Z", "x" * 1025])
def test_plain_json_with_an_invalid_time_gets_its_records_time(time):
    """Regression: fractions, values other than text, and text with a tab were rejected, which the contract lets pass."""
    event = of_plain(time)
    assert event.content["time"] == time
    assert (event.time, event.has_invalid_time) == (of_plain(None).time, True)


def of_binary(time):
    named = tuple(pair for pair in BINARY if pair[0] != "ce_time")
    return parsing.parse(builders.record(value=b"{}", headers=(*named, ("ce_time", time.encode()))), LAYOUT)


def of_plain(time):
    return parsing.parse(builders.record(value=orjson.dumps({"id": "e1", "tenant_id": "t1", "time": time})), LAYOUT)


@pytest.mark.parametrize(
    ("passes_cloud_event_time", "passes_plain_time"), [(False, True), (True, True), (False, False)]
)  # the setting `source.invalid_time`: empty, `passed`, `rejected`
def test_an_invalid_time_is_passed_or_rejected_by_the_layout(passes_cloud_event_time, passes_plain_time):
    layout = parsing.Layout(passes_cloud_event_time=passes_cloud_event_time, passes_plain_time=passes_plain_time)
    binary = builders.record(value=b"{}", headers=(*BINARY, ("ce_time", b"2026-05-01 10:00")))
    plain = builders.record(value=b'{"tenant_id":"t1","time":"2026-05-01 10:00"}')
    of_structured = builders.record(value=structured(time={}), headers=STRUCTURED)
    for record, passes in (
        (binary, passes_cloud_event_time),
        (of_structured, passes_cloud_event_time),
        (plain, passes_plain_time),
    ):
        if passes:
            event = parsing.parse(record, layout)
            assert (event.time, event.has_invalid_time) == ("2023-11-14T22:13:20.000Z", True)
        else:
            with pytest.raises(errors.EventRejected, match="RFC 3339"):
                parsing.parse(record, layout)
