"""A disk that stops answering, as if the process had been killed at some call."""

from typing import Any

from rocketstore.storage.files.disk import Disk


class KilledError(Exception):
    """The process would be gone now."""


class DyingDisk(Disk):
    """Carries out so many calls that change something, and fails every later one."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def _call(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KilledError

    def write_at(self, *arguments: Any) -> None:
        self._call()
        super().write_at(*arguments)

    def zero_range(self, *arguments: Any) -> None:
        self._call()
        super().zero_range(*arguments)

    def fdatasync(self, *arguments: Any) -> None:
        self._call()
        super().fdatasync(*arguments)

    def replace(self, *arguments: Any) -> None:
        self._call()
        super().replace(*arguments)

    def unlink(self, *arguments: Any) -> None:
        self._call()
        super().unlink(*arguments)

    def give_name(self, *arguments: Any) -> None:
        self._call()
        super().give_name(*arguments)

    def create_file(self, *arguments: Any) -> int:
        self._call()
        return super().create_file(*arguments)
