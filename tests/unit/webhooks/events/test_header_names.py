"""A record with a header whose name is not UTF-8 is rejected, whichever client read it."""

import pytest

from delivery import errors
from delivery.webhooks.events import parsing
from tests.support import builders

BINARY = (("ce_specversion", b"1.0"), ("ce_id", b"e"), ("ce_type", b"x"), ("ce_source", b"/s"), ("ce_tenantid", b"t1"))


@pytest.mark.parametrize("headers", [(("\ufffd", b""),), (*BINARY, ("ce_caf\ufffd", b"x")), ((f"trace{chr(0xFFFD)}", b"x"),)])
def test_a_record_with_a_header_whose_name_is_not_utf8_is_rejected(headers):
    with pytest.raises(errors.EventRejected, match="name of a header is not UTF-8") as rejected:
        parsing.parse(builders.record(value=b'{"tenant_id":"t1"}', headers=headers), parsing.Layout())
    assert rejected.value.reason == "bad_attribute"
