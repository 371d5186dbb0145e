"""A Java class of ``tests/interop`` that answers lines of JSON, in a JVM of its own."""

import fcntl
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from support.java_store import JavaBuildError, java_tool, run_maven
from support.line_process import LineProcess
from support.patience import START_S
from support.spark_home import QUIET_SHARING, SHORT_LIVED_JVM

LINES = Path(__file__).resolve().parents[1] / "interop" / "Lines.java"
"""The main loop of every driver, compiled with each."""

LIST_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
OPEN = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
"""What a store unmaps its files through."""


def class_path(project: Path) -> str:
    """Return the jars' paths; asks Maven if a jar is missing or the list older than the project."""
    java_tool("java")
    kept = project / "target" / "class-path"
    kept.parent.mkdir(exist_ok=True)
    with (kept.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes run side by side
        listed = kept.read_text() if kept.exists() else ""
        is_old = not listed or kept.stat().st_mtime < (project / "pom.xml").stat().st_mtime
        if is_old or not all(Path(jar).exists() for jar in listed.split(":")):
            run_maven(project, LIST_JARS, f"-Dmdep.outputFile={kept}")
        return kept.read_text()


class JavaProgram(LineProcess):
    """The class of a source, with the jars of a project.

    It is compiled once, and its JVMs share the classes that the first of them read: most of the
    processor time of one that serves a test went into both.
    """

    def __init__(
        self, project: Path, source: Path, options: Sequence[str] = (), *arguments: str
    ) -> None:
        jars = class_path(project)
        jar = _compiled(project, source, jars)
        self._archive = jar.with_suffix(".jsa")
        self._made = jar.with_suffix(f".{os.getpid()}.new")
        self._is_first = not self._archive.exists()
        shared = (
            f"-XX:ArchiveClassesAtExit={self._made}"
            if self._is_first
            else f"-XX:SharedArchiveFile={self._archive}"
        )
        command = [java_tool("java"), *SHORT_LIVED_JVM.split(), *QUIET_SHARING.split(), shared]
        super().__init__([*command, *options, "-cp", f"{jar}:{jars}", source.stem, *arguments])

    def kill(self) -> None:
        """End the JVM as ``kill -9`` does; the first one in order, which keeps the classes."""
        if self._is_first and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(START_S)
        super().kill()
        # A Java that keeps none does without.
        if self._made.exists():
            self._made.rename(self._archive)


def _compiled(project: Path, source: Path, jars: str) -> Path:
    """Return the jar of a source; only what is in jars can be shared."""
    jar = project / "target" / f"{source.stem}.jar"
    with (jar.parent / "lock").open("w") as lock, tempfile.TemporaryDirectory() as classes:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max(one.stat().st_mtime for one in (source, LINES, jar.parent / "class-path"))
        if jar.exists() and jar.stat().st_mtime > newest:
            return jar
        jar.with_suffix(".jsa").unlink(missing_ok=True)
        java = [java_tool("java"), *SHORT_LIVED_JVM.split()]
        compiler = [*java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn"]
        done = subprocess.run(
            [*compiler, "-encoding", "utf-8", "-cp", jars, "-d", classes, str(source), str(LINES)],
            check=False, timeout=START_S, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise JavaBuildError(f"{source.name} does not compile:\n{done.stderr[-3000:]}")
        made = jar.with_suffix(".made")
        with zipfile.ZipFile(made, "w") as packed:
            for one in sorted(Path(classes).rglob("*.class")):
                packed.write(one, one.relative_to(classes))
        made.rename(jar)
    return jar
