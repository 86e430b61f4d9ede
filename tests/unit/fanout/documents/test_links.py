"""The check of links finds links to a missing file or heading, and no other links."""

import pytest

from fanout.documents import links

TEXT = """\
# A title, with `code` and a [link](other.md)

## Twice
## Twice
## Über 1,000 `a_b` – so

```sh
# no heading
[no link](gone.md)
```
<a id="by-hand"></a>
"""


@pytest.fixture
def written(tmp_path):
    def write(body):
        (tmp_path / "other.md").write_text(TEXT)
        (tmp_path / "page.md").write_text(body)
        return list(links.broken(tmp_path / "page.md"))

    yield write
    links.anchors.cache_clear()


@pytest.mark.parametrize(
    "link",
    [
        "other.md",
        "other.md#twice",
        "other.md#twice-1",
        "other.md#a-title-with-code-and-a-link",
        "other.md#über-1000-a_b--so",
        "other.md#by-hand",
        "#here",
        "https://example.com/nowhere",
        "mailto:a@example.com",
    ],
)
def test_a_link_with_a_target_is_not_named(written, link):
    assert written(f"# Here\n[text]({link})\n") == []


@pytest.mark.parametrize("link", ["gone.md", "other.md#thrice", "other.md#twice-2", "other.md#no-heading", "#there"])
def test_a_link_without_a_target_is_named(written, link):
    assert written(f"# Here\n[text]({link})\n") == [link]
    assert written(f"# Here\n[text][1]\n\n[1]: {link}\n") == [link]


def test_links_in_code_are_ignored(written):
    assert written("`[text](gone.md)`\n\n```\n[text](gone.md)\n```\n") == []
