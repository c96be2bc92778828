"""Files of a lake, through Hadoop's file system: local, HDFS or an object store.

Hadoop has no call that atomically replaces a file on every file system. ``replace`` uses the
operation that is atomic there: a rename on local and HDFS-like systems; on an object store, a
second upload, because an object appears when its upload is complete and a rename is a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from skipring.errors import InputError, StorageError

LOCAL: Final = "file"
RENAMING: Final = frozenset({"hdfs", "viewfs", "webhdfs", "abfs", "abfss"})
_DRIVERS: Final = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
    "oss": "org.apache.hadoop:hadoop-aliyun",
}
_NO_DRIVER: Final = ("No FileSystem for scheme", "ClassNotFoundException", "NoClassDefFoundError")


class FileInfo(NamedTuple):
    """Entry of a directory."""

    name: str
    size: int
    is_directory: bool
    modified_s: float = 0.0


class LakeFiles:
    """Directory of a lake; paths are relative to it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001  (PySpark has no other way)
        self._java = jvm
        conf: Any = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        self._conf = conf
        path = jvm.org.apache.hadoop.fs.Path(root)
        first = root.partition("/")[0]
        scheme = first.removesuffix(":") if first.endswith(":") else LOCAL
        try:
            self._fs = path.getFileSystem(conf)
        except Py4JJavaError as error:
            raise _without_driver(root, scheme, error, self._hadoop_version()) from None
        self._root = str(self._fs.makeQualified(path).toString())
        self.scheme = str(self._fs.getScheme())
        if self.scheme == LOCAL:
            # A checksum file cannot be replaced together with its data.
            self._fs = self._fs.getRawFileSystem()

    def uri(self, path: str = "") -> str:
        """Return the address of a path for Spark."""
        return f"{self._root}/{path}" if path else self._root

    def exists(self, path: str) -> bool:
        """Return True if a file or directory exists."""
        with self._translated(path):
            return bool(self._fs.exists(self._path(path)))

    def list(self, path: str) -> list[FileInfo]:
        """Return the visible entries of a directory, by name; none if it is missing."""
        with self._translated(path):
            if not self._fs.exists(self._path(path)):
                return []
            found = [
                FileInfo(
                    status.getPath().getName(),
                    status.getLen(),
                    status.isDirectory(),
                    status.getModificationTime() / 1000,
                )
                for status in self._fs.listStatus(self._path(path))
            ]
        return sorted(entry for entry in found if not entry.name.startswith((".", "_")))

    def make_directory(self, path: str = "") -> None:
        """Create a directory and its parents."""
        with self._translated(path):
            if not self._fs.mkdirs(self._path(path)):
                raise StorageError(f"{self.uri(path)}: the directory cannot be created")

    def remove(self, path: str) -> None:
        """Remove a file or a directory with its content; a no-op if it is missing."""
        with self._translated(path):
            self._fs.delete(self._path(path), True)

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file; None if it is missing."""
        with self._translated(path):
            if not self._fs.exists(self._path(path)):
                return None
            stream = self._fs.open(self._path(path))
            try:
                text = self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            finally:
                stream.close()
        return str(text).encode()

    def write(self, path: str, content: bytes) -> None:
        """Replace a small file, so that a reader finds the old or the new content."""
        directory, _, name = path.rpartition("/")
        new = f"{directory}/_{name}.new" if directory else f"_{name}.new"  # no reader uses it
        with self._translated(path):
            stream = self._fs.create(self._path(new), True)
            try:
                stream.write(content)
            finally:
                stream.close()
        self.replace(new, path)

    def replace(self, source: str, target: str) -> None:
        """Move a file to a place where another one may exist; repeatable after a kill."""
        with self._translated(target):
            old, new = self._path(source), self._path(target)
            if self.scheme == LOCAL:
                if not self._fs.rename(old, new):
                    raise StorageError(f"{self.uri(target)}: the file cannot be replaced")
            elif self.scheme in RENAMING:
                self._context().rename(old, new, self._overwriting())
            else:
                self._java.org.apache.hadoop.fs.FileUtil.copy(
                    self._fs, old, self._fs, new, True, True, self._conf
                )

    @contextmanager
    def locked(self, path: str) -> Iterator[bool]:
        """Yield True if the lock file could be locked, or if the file system has no locks.

        The JVM holds the lock, because it writes the tables and may outlive a killed driver.
        """
        if self.scheme != LOCAL:
            yield True
            return
        with self._translated(path):
            local = self._java.java.net.URI(self.uri(path)).getPath()
            file = self._java.java.io.RandomAccessFile(local, "rw")
        try:
            yield file.getChannel().tryLock() is not None
        finally:
            file.close()  # releases the lock

    def _path(self, path: str) -> Any:  # noqa: ANN401  (an object of the JVM)
        return self._java.org.apache.hadoop.fs.Path(self.uri(path))

    def _context(self) -> Any:  # noqa: ANN401  (an object of the JVM)
        return self._java.org.apache.hadoop.fs.FileContext.getFileContext(
            self._fs.getUri(), self._conf
        )

    def _overwriting(self) -> Any:  # noqa: ANN401  (an object of the JVM)
        rename = getattr(self._java.org.apache.hadoop.fs, "Options$Rename")
        options = self._java.java.lang.reflect.Array.newInstance(rename.OVERWRITE.getClass(), 1)
        options[0] = rename.OVERWRITE
        return options

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            reason = str(error.java_exception.getMessage()).partition("\n")[0]
            raise StorageError(
                f"{self.uri(path)}: {reason}; check the path and its rights"
            ) from None

    def _hadoop_version(self) -> str:
        return str(self._java.org.apache.hadoop.util.VersionInfo.getVersion())


def _without_driver(root: str, scheme: str, error: Py4JJavaError, version: str) -> Exception:
    """Return an error that names the package of a missing driver."""
    text = str(error.java_exception.toString())
    if not any(sign in text for sign in _NO_DRIVER):
        return StorageError(f"{root}: {text.partition(chr(10))[0]}")
    if scheme not in _DRIVERS:
        return InputError(f"{root}: Spark has no driver for {scheme}://; add its package")
    package = _DRIVERS[scheme]
    release = version if package.startswith("org.apache.hadoop") else "VERSION"
    return InputError(
        f"{root}: Spark has no driver for {scheme}://; add its package: "
        f"set spark.jars.packages={package}:{release}"
    )
