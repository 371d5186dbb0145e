"""The page of a report: well-formed, complete in itself, and right for every kind of store."""

import functools
import html
import json
import random
import re
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from rocketstore.metrics.damage_map import (
    DAMAGE_MAP_FILE_NAME,
    DamagedRange,
    DamageMap,
    encode_damage_map,
)
from rocketstore.pipeline.jobs.report import partial_groups, report_job
from rocketstore.pipeline.jobs.report.report_page import (
    NOTHING,
    count_text,
    duration_text,
    moment_text,
    share_text,
    size_text,
    visible,
)
from support.busy_log import FILE_BYTES, NASTY, START_MS, busy_puts, write_log
from support.golden_stores import LOGS, golden_root, golden_store
from support.memory import memory_directory
from support.report_run import make_report, read_page, tables_of

NOW_MS = START_MS + 3_600_000
PUT = {"topic": "orders", "body": b"hello", "store_ms": START_MS, "latency_ms": 3}


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


def report_of(store, puts=None):
    if puts is not None:
        write_log(store, puts)
    out = store.parent / f"report{len(list(store.parent.iterdir()))}"
    return make_report(store, out, now_ms=NOW_MS)


def damage(path, position, size):
    content = bytearray(path.read_bytes())
    content[position : position + size] = bytes(
        byte ^ 0x5A for byte in content[position : position + size]
    )
    path.write_bytes(content)


@pytest.fixture(scope="module")
def reports():
    """Reports that several tests look at, each made when it is first asked for."""
    puts = {"busy": busy_puts(500), "one": [PUT]}
    with memory_directory() as directory:

        @functools.cache
        def made(name):
            store = directory / name / "store"
            if name in puts:
                return report_of(store, puts[name])
            store.parent.mkdir(parents=True)
            return make_report(golden_root(name), store.parent / "report")

        yield made


@pytest.mark.parametrize("name", LOGS)
def test_a_page_is_well_formed_and_needs_nothing_else(reports, name):
    report = reports(name)
    page = read_page(report.page)
    assert not {"script", "link", "iframe", "img", "object", "embed", "base", "form"} & {
        tag for tag, _ in page.elements
    }
    for _, values in page.elements:
        assert not any(attribute.startswith("on") for attribute in values)
        assert not {"src", "srcset", "data", "action", "xlink:href"} & set(values)
        assert values.get("href", "#").startswith("#")
    assert not re.search(r"url\(|@import|https?:|//\w", report.page.read_text("utf-8"))


@pytest.mark.parametrize("name", [name for name in LOGS if not name.startswith("crash/")])
def test_messages_of_golden_stores_equal_the_manifest(reports, name):
    java = [record for record in golden_store(name)[1]["records"] if record["type"] == "msg"]
    report = reports(name)
    tables = tables_of(report)
    queues = {(row["topic"], row["queueId"]): row["messages"] for row in tables["queues"]}
    assert queues == Counter((one["topic"], one["queueId"]) for one in java)
    assert report.summary["bytes"] == sum(one["size"] for one in java)
    tags = {(row["topic"], row["tags"]): row["messages"] for row in tables["tags"]}
    assert tags == Counter((one["topic"], one["properties"].get("TAGS") or None) for one in java)


def test_every_link_leads_to_a_section(reports):
    page = read_page(reports("busy").page)
    targets = {values["href"][1:] for tag, values in page.elements if tag == "a"}
    assert targets <= set(page.ids())
    assert {"traffic", "topics", "tags", "keys", "sizes", "latency", "delays", "retries"} < targets


def test_every_chart_has_a_name_a_table_and_values_for_pointer_and_keyboard(reports):
    report = reports("busy")
    page = read_page(report.page)
    drawings = [values for tag, values in page.elements if tag == "svg"]
    assert len(drawings) > 10
    assert all(values["role"] in ("img", "group") and values["aria-label"] for values in drawings)
    large = [values for values in drawings if values["role"] == "group"]
    assert len(large) == [tag for tag, _ in page.elements].count("figure") > 5
    bars = [values for _, values in page.elements if (values.get("class") or "").startswith("bar")]
    reached = [values for values in bars if values.get("tabindex") == "0"]
    assert all(values["role"] == "img" and values["aria-label"] for values in reached)
    said = {values["aria-label"] for values in reached}
    traffic = json.loads(report.json.read_text())["traffic"]
    for at, messages in zip(traffic["barsMs"], traffic["messages"], strict=True):
        assert not messages or f"{moment_text(at)}: {messages}" in said
    tags = [tag for tag, _ in page.elements]
    assert tags.count("details") >= len(large)
    assert tags.count("title") > len(reached)


def test_names_that_are_markup_or_turn_lines_around_stay_text(reports):
    report = reports("busy")
    assert NASTY not in report.page.read_text("utf-8")
    page = read_page(report.page)
    assert '<script>alert("x")</script>&\\u202e' in page.text
    assert "\u202e" not in report.page.read_text("utf-8")
    assert visible("a\0b\ud800\u2028é✓") == "a\\u0000b\\ud800\\u2028é✓"


def test_colours_follow_the_reader_and_a_phone_gets_its_own_layout(reports):
    text = reports("one").page.read_text("utf-8")
    assert "prefers-color-scheme: dark" in text
    assert "max-width: 48rem" in text
    assert 'name="viewport"' in text


def colours(text, scheme):
    part = text.split("prefers-color-scheme: dark")[scheme == "dark"]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", part))


def contrast(one, other):
    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_bars_have_the_contrast_that_wcag_asks_for(reports, scheme):
    found = colours(reports("one").page.read_text("utf-8"), scheme)
    for ground in ("paper", "card"):
        for text in ("ink", "soft", "odd", "bad", "good", "data"):
            assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
    assert contrast(found["ink"], found["data-soft"]) >= 4.5


# --- stores of every kind -----------------------------------------------------------------------


def test_an_empty_store_is_said_to_hold_nothing(store):
    (store / "commitlog").mkdir(parents=True)
    (store / "checkpoint").write_bytes(bytes(4096))
    report = report_of(store)
    assert "This store holds no messages." in read_page(report.page).text
    assert report.summary["messages"] == 0
    assert all(rows == [] for rows in tables_of(report).values())


def test_a_store_of_unwritten_files_is_said_to_hold_nothing(store):
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / f"{0:020d}").write_bytes(bytes(FILE_BYTES))
    text = read_page(report_of(store).page).text
    assert "This store holds no messages." in text
    assert "No damage found." in text


def test_one_message_without_tag_and_key_is_written_in_the_singular(reports):
    page = read_page(reports("one").page)
    assert "1 message of 1 topic in 1 queue, stored 2023-11-14 22:13:20 UTC" in page.text
    assert not {"tags", "keys"} & set(page.ids())
    assert "No message was delayed" in page.text
    assert "No message came back" in page.text


def test_messages_without_any_believable_time_have_no_traffic_and_no_latency(store):
    report = report_of(store, [PUT | {"store_ms": -5, "latency_ms": 0}] * 3)
    page = read_page(report.page)
    assert not {"traffic", "latency"} & set(page.ids())
    assert "3 messages state a store time before 1970" in page.text
    assert report.summary["withoutStoreTime"] == 3


def test_clocks_that_differ_are_named(store):
    text = read_page(report_of(store, [PUT, PUT | {"latency_ms": -90_000}]).page).text
    assert "1 message (50.0 %) state to be born after they were stored, by up to 1.5 min" in text


def test_a_lone_message_years_away_does_not_squeeze_the_rest(store):
    puts = [PUT | {"store_ms": START_MS + one * 1_000} for one in range(2_000)]
    puts.append(PUT | {"store_ms": START_MS + 10**12})
    text = read_page(report_of(store, puts).page).text
    assert "1 message stored far from all others" in text
    assert "Messages per 20 s" in text


def test_tags_that_are_too_many_are_said_to_be(store, monkeypatch):
    monkeypatch.setattr(partial_groups, "NAME_CAPACITY", 20)
    page = read_page(report_of(store, [PUT | {"tags": f"t{one}"} for one in range(300)]).page)
    assert "too many different tags to keep all" in page.text
    assert "tags" in page.ids()


def test_a_store_of_many_topics_over_hours_is_drawn_by_minutes(store):
    puts = [
        PUT | {"topic": f"t{one % 10}", "store_ms": START_MS + one * 60_000} for one in range(200)
    ]
    assert "Messages per 2 min" in read_page(report_of(store, puts).page).text


def test_a_store_of_minutes_is_drawn_by_seconds(store):
    puts = [PUT | {"store_ms": START_MS + one * 1_000} for one in range(100)]
    assert "Messages per second" in read_page(report_of(store, puts).page).text


def test_damage_is_on_the_page_first_and_by_file_and_place(store):
    write_log(store, busy_puts(2_000))
    logs = sorted((store / "commitlog").iterdir())
    damage(logs[0], 100, 1)
    damage(logs[1], 50_000, 9_000)
    report = report_of(store)
    page = read_page(report.page)
    assert "Damage. 2 damaged ranges" in page.text
    rows = tables_of(report)["damage"]
    assert [row["file"] for row in rows] == [str(logs[0]), str(logs[1])]
    assert rows[1]["position"] <= 50_000
    assert rows[1]["position"] + rows[1]["size"] >= 59_000
    lost = [
        values for tag, values in page.elements if (tag, values.get("class")) == ("rect", "lost")
    ]
    drawn = [(float(values["x"]), float(values["width"])) for values in lost]
    width = FILE_BYTES / 200
    first, last = rows[1]["position"], rows[1]["position"] + rows[1]["size"] - 1
    cells = int(first // width), int(last // width)
    assert drawn == [(0.0, 1.0), (cells[0], cells[1] - cells[0] + 1)]


def test_a_missing_file_and_a_cut_one_are_damage(store):
    write_log(store, busy_puts(4_000))
    logs = sorted((store / "commitlog").iterdir())
    logs[1].unlink()
    logs[3].write_bytes(logs[3].read_bytes()[:100_000])
    report = report_of(store)
    reasons = {row["reason"]: row["size"] for row in tables_of(report)["damage"]}
    assert reasons["missing file"] == FILE_BYTES
    assert reasons["truncated"] >= FILE_BYTES - 100_000
    states = [row["state"] for row in tables_of(report)["files"]]
    assert states[1] == "missing"
    assert states[3] == "truncated"
    assert "missing" in read_page(report.page).text


def test_damage_is_the_same_for_every_cut_and_from_groups_too_large_to_keep(
    store, tmp_path, monkeypatch
):
    write_log(store, busy_puts(2_000))
    logs = sorted((store / "commitlog").iterdir())
    damage(logs[0], 30_000, 60_000)
    damage(logs[1], 10, 200_000)
    whole = report_of(store)
    expected = whole.page.read_bytes(), whole.summary, tables_of(whole)
    for size, kept in ((20_000, report_job.KEPT_BYTES), (100_000, 0)):
        monkeypatch.setattr(report_job, "KEPT_BYTES", kept)
        cut = make_report(store, tmp_path / str(size), split_bytes=size, now_ms=NOW_MS)
        assert (cut.page.read_bytes(), cut.summary, tables_of(cut)) == expected


def test_a_torn_end_of_an_open_store_is_no_damage(store):
    write_log(store, [PUT] * 10)
    (log,) = (store / "commitlog").iterdir()
    end = len(log.read_bytes().rstrip(b"\0"))
    damage(log, end - 60, 50)
    assert report_of(store).summary["damagedRanges"] == 1
    (store / "abort").touch()
    assert report_of(store).summary["damagedRanges"] == 0


def test_stores_of_a_directory_are_reported_together(tmp_path):
    both = tmp_path / "both"
    for name in ("a", "b"):
        write_log(both / name, [PUT] * 5)
    report = make_report(both, tmp_path / "report", now_ms=NOW_MS)
    assert report.summary["messages"] == 10
    assert [row["brokerName"] for row in tables_of(report)["queues"]] == ["a", "b"]
    assert "a, b" in read_page(report.page).text


def test_a_delay_table_that_is_torn_gives_way_to_its_backup(store):
    write_log(store, busy_puts(400))
    (store / "config").mkdir()
    (store / "config" / "delayOffset.json").write_text('{"offsetTable":{3:')
    assert report_of(store).summary["stores"][0]["hasDelayOffsets"] is False
    shutil.copy(store / "config" / "delayOffset.json", store / "config" / "delayOffset.json.bak")
    (store / "config" / "delayOffset.json.bak").write_text('{"offsetTable":{3:1}}')
    assert report_of(store).summary["stores"][0]["hasDelayOffsets"] is True


ODD_FIELDS = {
    "topic": ["", "\0a", "a" * 127, "日本" * 20, "a/../b"],
    "store_ms": [0, -1, 2**62, 253_402_300_799_999, 253_402_300_800_000],
    "latency_ms": [0, 10**12, -(10**12)],
    "queue_id": [-5, 2**31 - 1],
    "reconsume_times": [-4, 2**31 - 1],
    "delay_level": [99, 2**31 - 1],
}


def leaves(value):
    """Yield every number and text of a JSON document."""
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, (dict, list)):
            yield from leaves(one)
        elif one is not None:
            yield one


def test_every_number_of_the_page_is_in_the_json(store):
    write_log(store, busy_puts(2_000))
    damage(sorted((store / "commitlog").iterdir())[1], 3_000, 500)
    report = report_of(store)
    known = {NOTHING}
    for leaf in leaves(json.loads(report.json.read_text("utf-8"))):
        if isinstance(leaf, str):
            known |= {visible(leaf), leaf[:19].replace("T", " "), leaf.rpartition("/")[2]}
        else:
            forms = (str, count_text, size_text, duration_text, moment_text)
            known |= {form(leaf) for form in forms}
    html_text = report.page.read_text("utf-8")
    cells = re.findall(r'<t[dh][^>]*>(.*?)</t[dh]>|<dd(?: class="figure")?>(.*?)</dd>', html_text)
    shown = [html.unescape(re.sub("<[^>]+>", "", "".join(groups))) for groups in cells]
    figures = {text for text in shown if re.search("[0-9]", text) and not text.endswith("%")}
    figures -= {"99 % ≤", "90 % ≤", "below 0"}
    assert len(figures) > 250
    parts = {part for text in figures - known for part in text.removeprefix("≤ ").split(" to ")}
    assert {part.removesuffix(" times") for part in parts} - known == set()


@pytest.mark.parametrize("seed", [5, 6, 13, 20])
def test_odd_headers_and_noise_give_a_page_that_is_the_same_for_every_cut(store, tmp_path, seed):
    chance = random.Random(seed)
    puts = busy_puts(300, seed)
    for put in puts:
        if chance.random() < 0.2:
            field = chance.choice(list(ODD_FIELDS))
            put[field] = chance.choice(ODD_FIELDS[field])
        if chance.random() < 0.02:
            put |= {"topic": "SCHEDULE_TOPIC_XXXX", "store_ms": 253_402_300_799_999}
    write_log(store, puts)
    (log,) = (store / "commitlog").iterdir()
    content = bytearray(log.read_bytes())
    for size in (1, 40, 3_000):
        at = chance.randrange(len(content) // 2)
        content[at : at + size] = chance.randbytes(size)
    log.write_bytes(content)
    whole = report_of(store)
    assert read_page(whole.page).text
    expected = whole.page.read_bytes(), whole.summary, tables_of(whole)
    cut = make_report(store, tmp_path / "cut", split_bytes=9_000, now_ms=NOW_MS)
    assert (cut.page.read_bytes(), cut.summary, tables_of(cut)) == expected


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 Bytes"), (1, "1 Byte"), (1_023, "1023 Bytes"), (1_536, "1.5 KiB"), (2**60, "1.0 EiB")],
)
def test_sizes_are_written_in_powers_of_1024(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [(0, "0 ms"), (-3, "\u22123 ms"), (1_500, "1.5 s"), (90_000, "1.5 min"), (8.64e7, "1 d")],
)
def test_durations_are_written_in_one_unit(duration, text):
    assert duration_text(duration) == text


def test_a_share_is_never_rounded_to_nothing_or_to_all():
    assert share_text(1, 10**6) == "< 0.1 %"
    assert share_text(10**6 - 1, 10**6) == "> 99.9 %"
    assert share_text(1, 3) == "33.3 %"


def test_what_is_drawn_leaves_the_process_able_to_find_what_is_installed():
    code = """
import importlib.metadata
import sys
from rocketstore.pipeline.jobs.report.report_page import Bar, bar_chart

bar_chart("a chart", [Bar(1, "a", "1")], str)
importlib.metadata.distribution("pygal")
assert "PluginImportFixer" not in {type(hook).__name__ for hook in sys.meta_path}
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_open_transactions_are_on_the_page_by_age_where_there_are_any(reports, tmp_path):
    root, manifest = golden_store("broker")
    assert "Open transactions" not in read_page(reports("broker").page).text
    store = shutil.copytree(root, tmp_path / "store")
    # As if no op record had been written: of these four no committed message is in the log.
    offsets = {"RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS": {"0": 12}}
    (store / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    born = {
        one["queueOffset"]: one["bornTimestamp"]
        for one in manifest["records"]
        if one.get("topic") == "RMQ_SYS_TRANS_HALF_TOPIC"
    }
    now_ms = born[4] + 60_000 - 1  # 1 is a minute old; 4, 7 and 10 are not
    report = make_report(store, tmp_path / "report", now_ms=now_ms, split_bytes=3_000)
    rows = tables_of(report)["transactions"]
    assert [(row["ageMs"], row["messages"], row["checkTimes"]) for row in rows] == [
        (60_000, 1, 0),
        (0, 3, 0),
    ]
    assert {(row["topic"], row["producerGroup"]) for row in rows} == {
        ("GoldenTx", "golden_tx_producer")
    }
    assert round(rows[0]["firstBornTimestamp"].timestamp() * 1000) == born[1]
    text = read_page(report.page).text
    assert "Open transactions" in text
    assert "golden_tx_producer" in text
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (store / "config" / name).write_text("{")
    assert tables_of(make_report(store, tmp_path / "torn"))["transactions"] == []


def test_what_the_store_s_own_check_knows_is_on_the_page(store):
    assert report_of(store, busy_puts(50)).summary["stores"][0]["scrub"] is None
    lost = DamagedRange(7, 9, "bad crc", "", "", found_timestamp=1)
    known = DamageMap(passes=2, last_pass_timestamp=1_700_000_000_000, damage=(lost,))
    (store / DAMAGE_MAP_FILE_NAME).write_bytes(encode_damage_map(known))
    report = report_of(store)
    assert report.summary["stores"][0]["scrub"] == {
        "passes": 2, "lastPassMs": 1_700_000_000_000, "damagedRanges": 1,
    }  # fmt: skip
    page = report.page.read_text()
    assert "last through on 2023-11-14 22:13" in page
    assert "1 damaged range known" in page
