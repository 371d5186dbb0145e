"""What a new user of Python meets: help, slips, versions, results that are checked in a line."""

import copy
import enum
import inspect
import pickle
import pydoc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import rocketstore
from rocketstore import (
    ConsumedMessage,
    GetViewsResult,
    Message,
    MessageStore,
    PreparedMessage,
    PutFailedError,
    PutMessageStatus,
    PutResult,
    RocketStoreError,
    Service,
    StoreClosedError,
    StoreConfig,
    config,
    pipeline,
)
from rocketstore.config.store_config import FIELDS, field_texts
from rocketstore.process import OfOneProcess
from support.clock import Clock
from support.python_process import run_python


def help_of(thing) -> str:
    return pydoc.render_doc(thing, renderer=pydoc.plaintext)


@pytest.mark.parametrize("module", [rocketstore, config, pipeline])
def test_help_shows_plain_types_and_cites_nothing_that_is_not_in_the_repository(module):
    assert set(module.__all__) <= set(dir(module))  # what help of the module lists, and a notebook
    for name in module.__all__:
        text = help_of(getattr(module, name))
        for unwanted in ("Annotated", "Option(", "spec ", "DESIGN"):
            assert unwanted not in text, name


def test_help_of_the_settings_has_a_text_for_each():
    text = " ".join(help_of(StoreConfig).replace(" |", " ").split())
    texts = field_texts()
    for field, spec in FIELDS.items():
        assert f" {field}: {spec.kind.__name__}" in text
        assert texts[field] in text
    signature = inspect.signature(StoreConfig)
    assert signature.parameters["retention"].annotation is bool
    assert signature.parameters["max_index_num"].annotation == int | None


@pytest.mark.parametrize("given", [("data/store",), ("data/store", StoreConfig())])
def test_a_store_that_is_called_instead_of_opened_says_how(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=r"MessageStore\.open\(path\)"):
        MessageStore(*given)
    assert not any(tmp_path.iterdir())


def test_a_result_that_is_fine_is_returned_by_its_check(tmp_path):
    with MessageStore.open(tmp_path, StoreConfig.small()) as store:
        result = store.put(Message(topic="orders", body=b"x"))
        assert result.raise_for_status() is result
        long = store.put(Message(topic="t" * 128))
        with pytest.raises(PutFailedError, match=r"MESSAGE_ILLEGAL: the message was not stored: ."):
            long.raise_for_status()


@pytest.mark.parametrize("status", PutMessageStatus)
def test_every_other_status_is_an_error_that_says_whether_the_message_is_there(status):
    result = PutResult(status, 4711, detail="the cause")
    if status is PutMessageStatus.PUT_OK:
        assert result.raise_for_status() is result
        return
    with pytest.raises(PutFailedError, match=f"^{status.name}: .*the cause") as caught:
        result.raise_for_status()
    assert caught.value.status is status
    assert caught.value.is_stored is result.is_stored
    assert ("in the log at 4711" in str(caught.value)) is result.is_stored
    assert ("do not put it again" in str(caught.value)) is result.is_stored
    refused_again = {
        "MESSAGE_ILLEGAL",
        "PROPERTIES_SIZE_EXCEEDED",
        "LMQ_CONSUME_QUEUE_NUM_EXCEEDED",
    }
    assert ("it would be refused again" in caught.value.hint) is (status.name in refused_again)
    is_final = result.is_stored or status.name in refused_again
    assert caught.value.retriable is result.retriable is not is_final


def public_classes() -> Iterator[type]:
    for module in (rocketstore, pipeline):
        for name in module.__all__:
            kind = getattr(module, name)
            if isinstance(kind, type) and not issubclass(kind, Exception | enum.Enum | Service):
                yield kind


def copies(thing: object) -> list[Callable[[], object]]:
    pickled = [lambda n=n: pickle.loads(pickle.dumps(thing, n)) for n in range(6)]  # noqa: S301
    return [lambda: copy.copy(thing), lambda: copy.deepcopy(thing), *pickled]


@pytest.mark.parametrize("kind", sorted(public_classes(), key=lambda one: one.__name__))
def test_what_is_public_is_copied_and_carried_whole_or_says_that_it_stays(kind, tmp_path):
    config = StoreConfig.small(
        enable_consume_queue_ext=True, enable_calc_filter_bit_map=True,
        mapped_file_size_consume_queue_ext=65_536,
    )  # fmt: skip
    with (
        MessageStore.open(tmp_path, config) as store,
        MessageStore.open(tmp_path, read_only=True) as reader,
    ):
        store.put(Message(topic="orders", body=b"x"))
        consumer = store.consume("orders", "billing", start="first")
        at_hand = [
            store, reader, consumer, next(consumer), store.statistics, store.running_flags,
            store.consumer_filters, store.batch_topics, store.get_views("orders", 0, 0),
            store.prepare(Message(topic="orders")), config, Message(topic="orders"),
        ]  # fmt: skip
        thing = next((one for one in at_hand if type(one) is kind), None)
        if thing is None:  # no more than its fields
            fields = getattr(kind, "_fields", None) or kind.__struct_fields__
            thing = kind(**{name: number for number, name in enumerate(fields)})
        assert kind.__name__ in repr(thing)
        if isinstance(thing, ConsumedMessage | GetViewsResult):
            assert copy.copy(thing) == thing
            with pytest.raises(TypeError, match=r"belongs to this process|memoryview"):
                pickle.dumps(thing)
        elif isinstance(thing, OfOneProcess):
            for made in copies(thing):
                with pytest.raises(TypeError, match="process: give the other one the store's path"):
                    made()
        elif kind is not PreparedMessage:
            assert all(type(one()) is kind and one() == thing for one in copies(thing))


PREPARED = {
    "plain": PreparedMessage("orders", b"body", b"k\x01v\x02", flag=3, wait_flush=False),
    "all": PreparedMessage(
        "orders", b"", sys_flag=1 << 9, born_timestamp_ms=5, born_host="[::1]:7",
        reconsume_times=4, prepared_transaction_offset=6,
    ),
    "delayed": PreparedMessage("orders", b"body", b"DELAY\x013\x02"),
}  # fmt: skip


@pytest.mark.parametrize("which", PREPARED)
def test_a_prepared_message_is_carried_to_another_process_whole(which, tmp_path):
    prepared = PREPARED[which]
    with MessageStore.open(tmp_path, StoreConfig.small(), clock=Clock()) as store:
        stored = set()
        for one in [prepared, *(make() for make in copies(prepared))]:
            assert (type(one), one.wait_flush) == (type(prepared), prepared.wait_flush)
            message = store.at_physical_offset(store.put_prepared(one).physical_offset)
            fields = msgspec.structs.asdict(message) | {"queue_offset": 0, "physical_offset": 0}
            stored.add(repr(fields))
        assert len(stored) == 1


@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_that_was_closed_is_no_context_again(tmp_path, read_only):
    MessageStore.open(tmp_path, StoreConfig.small()).close()
    with MessageStore.open(tmp_path, read_only=read_only) as store:
        pass
    with pytest.raises(StoreClosedError, match="open it again"), store:
        pytest.fail("nothing can be put here")


@pytest.mark.parametrize("has_stub", [True, False])
def test_a_program_that_was_packed_has_the_public_names_or_is_told_what_it_lacks(
    tmp_path, has_stub
):
    package = Path(rocketstore.__file__).parent
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
        for path in (*package.rglob("*.py"), *(package.glob("*.pyi") if has_stub else ())):
            packed.write(path, path.relative_to(package.parent))
    program = "import sys; sys.path.insert(0, sys.argv[1]); from rocketstore import Message as it"
    done = run_python("-c", f"{program}; print(it(topic='t').topic)", tmp_path / "packed.zip")
    if has_stub:
        assert done.stdout == "t\n", done.stderr
    else:
        assert "pass --collect-all rocketstore to PyInstaller" in done.stderr


def test_the_package_is_run_like_its_command():
    done = run_python("-m", "rocketstore", "--version")
    assert done.stdout.strip() == rocketstore.__version__


def errors_of(kind: type[RocketStoreError]) -> Iterator[type[RocketStoreError]]:
    yield kind
    for further in kind.__subclasses__():
        if further.__module__ == kind.__module__:
            yield from errors_of(further)


@pytest.mark.parametrize("kind", sorted(set(errors_of(RocketStoreError)), key=str))
def test_an_error_comes_whole_out_of_another_process(kind):
    """A pool gets it pickled; one that could not be made again would break the pool."""
    wanted = inspect.signature(kind).parameters.values()
    error = kind("what", **{one.name: 17 for one in wanted if one.kind is one.KEYWORD_ONLY})
    error.add_note("where")
    fields = {name: getattr(error, name, None) for name in [*vars(error), "errno"]}
    for copied in (
        *(pickle.loads(pickle.dumps(error, version)) for version in range(6)),  # noqa: S301
        copy.copy(error),
        copy.deepcopy(error),
    ):
        assert type(copied) is kind
        assert (str(copied), copied.args) == (str(error), error.args)
        assert {name: getattr(copied, name, None) for name in fields} == fields
