from rocketstore.storage.reading.read_sources import ByteArray
from rocketstore.storage.results import GetMessageStatus, GetRawResult

class Gatherer:
    def __init__(
        self,
        topic: bytes,
        queue_id: int,
        limits: tuple[int, int, int, int],
        result_type: type[GetRawResult],
        found: GetMessageStatus,
    ) -> None: ...
    def page(
        self,
        log: ByteArray,
        base: int,
        readable: int,
        entries: ByteArray,
        entries_base: int,
        offset: int,
        stop: int,
        max_messages: int,
        in_disk_below: int,
        minimum: int,
        maximum: int,
        /,
    ) -> GetRawResult | None: ...
