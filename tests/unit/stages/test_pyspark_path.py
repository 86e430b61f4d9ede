"""Which copy of PySpark the Python workers import."""

from delivery.stages import pyspark_path


def installed(folder):
    """Make a folder of installed packages that contains PySpark, both unpacked and zipped; return the zip file's path."""
    package = folder / "pyspark"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return str(package / "python" / "lib" / "pyspark.zip")


def test_the_unpacked_copy_of_the_same_installation_is_imported(tmp_path):
    zipped = installed(tmp_path)
    assert pyspark_path.without_zipped_copies(["", zipped, "/opt/py4j-src.zip", str(tmp_path)]) == [
        "", "/opt/py4j-src.zip", str(tmp_path),
    ]  # fmt: skip


def test_the_zipped_copy_of_another_spark_stays_first(tmp_path):
    installed(tmp_path / "here")
    elsewhere = "/opt/spark/python/lib/pyspark.zip"
    path = [elsewhere, str(tmp_path / "here")]
    assert pyspark_path.without_zipped_copies(path) == path


def test_without_an_unpacked_copy_on_the_path_the_zipped_one_stays(tmp_path):
    path = [installed(tmp_path), "/usr/lib/python3"]
    assert pyspark_path.without_zipped_copies(path) == path
