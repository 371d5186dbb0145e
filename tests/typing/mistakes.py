"""Mistakes that a type checker finds; an ignore that is not needed is an error itself."""

from rocketstore import Message, MessageStore, StoreConfig

Message(topic=b"orders")  # type: ignore[arg-type]
Message(topic="orders", body="text")  # type: ignore[arg-type]
Message("orders")  # type: ignore[call-arg]
Message(topic="orders", keys=["a", "b"])  # type: ignore[arg-type]
StoreConfig(flush_disk_type="SYNC_FLUSH")  # type: ignore[arg-type]
StoreConfig(flushDiskType="SYNC_FLUSH")  # type: ignore[call-arg]

with MessageStore.open("data/store") as store:
    store.put("orders")  # type: ignore[arg-type]
    store.get("orders", "0", 0)  # type: ignore[arg-type]
    store.find("orders")  # type: ignore[call-arg]
    store.max_offset("orders", 0).append(1)  # type: ignore[attr-defined]

with MessageStore.open("data/store", read_only=True) as reader:
    reader.put(Message(topic="orders"))  # type: ignore[attr-defined]
    reader.put_batch([])  # type: ignore[attr-defined]
    reader.flush()  # type: ignore[attr-defined]

MessageStore("data/store")  # type: ignore[arg-type]
