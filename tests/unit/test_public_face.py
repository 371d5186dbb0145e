"""What a new user of Python meets: help, slips, versions, results that are checked in a line."""

import copy
import inspect
import pickle
import pydoc
import subprocess
import sys
from collections.abc import Iterator

import pytest

import rocketstore
from rocketstore import (
    Message,
    MessageStore,
    PutFailedError,
    PutMessageStatus,
    PutResult,
    ReadOnlyStore,
    RocketStoreError,
    StoreConfig,
    StoreReadOnlyError,
    config,
    pipeline,
)
from rocketstore.config.store_config import FIELDS, field_texts
from support.patience import PATIENCE_S


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


def test_a_reader_that_is_asked_to_write_says_why_not(tmp_path):
    MessageStore.open(tmp_path, StoreConfig.small()).close()
    with MessageStore.open(tmp_path, read_only=True) as reader:
        assert isinstance(reader, ReadOnlyStore)
        for name in (
            "put",
            "put_batch",
            "put_client_batch",
            "put_encoded",
            "put_prepared",
            "prepare",
            "flush",
        ):
            with pytest.raises(StoreReadOnlyError, match="without read_only=True"):
                getattr(reader, name)(Message(topic="orders"))


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


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("carry", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_store_stays_in_its_process_and_says_so(tmp_path, read_only, carry):
    MessageStore.open(tmp_path, StoreConfig.small()).close()
    said = "belongs to this process: give the other one its path"
    with (
        MessageStore.open(tmp_path, read_only=read_only) as store,
        pytest.raises(TypeError, match=said),
    ):
        carry(store)


def test_the_package_is_run_like_its_command():
    done = subprocess.run(
        [sys.executable, "-m", "rocketstore", "--version"],
        capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
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
