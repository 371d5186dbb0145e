from rocketstore.format.compiled_decoder import IntactDecoder
from rocketstore.format.index_file import IndexLayout
from rocketstore.message import StoredMessage
from rocketstore.storage.reading.key_search import KeySearch
from rocketstore.storage.reading.read_sources import ByteArray

def append_hits(
    owner: KeySearch,
    decode: IntactDecoder,
    index_file: ByteArray,
    layout: IndexLayout,
    number: int,
    question: tuple[str, str, int, int],
    place: tuple[ByteArray, int, int],
    in_disk_below: int,
    most: int,
    found: list[StoredMessage],
    /,
) -> int | None: ...
