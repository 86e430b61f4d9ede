"""The map of folders shows what the files import."""

import pytest

from fanout.documents import folder_map

FILES = {
    "fanout/__init__.py": "",
    "fanout/cli/__init__.py": '"""The commands.\n\nMore."""',
    "fanout/cli/main.py": "from fanout.demo import run\nfrom fanout.kafka.places import Place\nimport os",
    "fanout/demo/__init__.py": '"""The demo."""',
    "fanout/demo/run.py": "from fanout.kafka import places\nimport fanout.demo.oracle",
    "fanout/demo/oracle.py": "",
    "fanout/kafka/places.py": "Place = tuple",
}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_only_imports_of_this_project_are_mapped(root):
    assert folder_map.module_imports(root) == {
        "fanout.cli.main": {"fanout.demo.run", "fanout.kafka.places"},
        "fanout.demo.run": {"fanout.kafka.places", "fanout.demo.oracle"},
        "fanout.demo.oracle": set(),
        "fanout.kafka.places": set(),
    }


def test_folder_does_not_import_itself(root):
    assert folder_map.folder_imports(root) == {
        "fanout.cli": {"fanout.demo", "fanout.kafka"},
        "fanout.demo": {"fanout.kafka"},
        "fanout.kafka": set(),
    }


@pytest.mark.parametrize(
    ("module", "folder"),
    [
        ("delivery.errors", "delivery.errors"),
        ("delivery.stages.jvm", "delivery.stages.jvm"),
        ("delivery.stages.kafka.sink", "delivery.stages.kafka"),
        ("subscriptions_db.api.server.app", "subscriptions_db.api.server"),
    ],
)
def test_folder_of_returns_the_folder_of_a_module(module, folder):
    assert folder_map.folder_of(module) == folder


def test_picture_leaves_out_arrows_that_a_longer_way_implies():
    """a → c follows from a → b → c. b and d share a floor."""
    imports = {"x.a": {"x.b", "x.c"}, "x.b": {"x.c", "y.e"}, "x.d": set(), "x.c": set()}
    drawn = folder_map._picture([["x.a"], ["x.b", "x.d"], ["x.c"]], imports, prefix="x.")
    assert drawn.splitlines()[2:-1] == [
        "flowchart TB",
        'n0["a"]',
        'subgraph floor_of_n1[" "]',
        'n1["b"]',
        'n2["d"]',
        "end",
        'n3["c"]',
        "n0 --> n1",
        "n1 --> n3",
    ]
