"""The pages lead somewhere: links resolve, commands and make targets exist."""

import re
from pathlib import Path

import pytest

from rocketstore.cli.application import app
from support.repository import ROOT, files_with

PAGES = files_with(".md")

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"\brocketstore ((?:[a-z]+(?:\|[a-z]+)*)(?: (?:[a-z]+(?:\|[a-z]+)*))?)")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
NAME = re.compile(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b")


def text_of(path: Path) -> str:
    return (ROOT / path).read_text("utf-8")


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text_of(path)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def test_every_link_resolves():
    broken = []
    links = [(page, one) for page in PAGES for one in LINK.findall(FENCE.sub("", text_of(page)))]
    for page, target in links:
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page.parent / name).resolve() if name else ROOT / page
        if not file.exists() or (anchor and anchor not in anchors(file.relative_to(ROOT))):
            broken.append((page, target))
    assert not broken


def test_every_page_is_reached_from_the_index():
    index = Path("docs/README.md")
    reached = {
        (ROOT / index.parent / target.partition("#")[0]).resolve()
        for target in LINK.findall(text_of(index))
    }
    inside = [page for page in PAGES if page.parts[0] == "docs" and page != index]
    decisions = ROOT / "docs" / "decisions" / "README.md"
    reached |= {
        (decisions.parent / target).resolve() for target in LINK.findall(decisions.read_text())
    }
    assert not [str(page) for page in inside if (ROOT / page).resolve() not in reached]


def words_of(command: str) -> list[list[str]]:
    """Return the ways to read ``store info|scan STORE``."""
    noun, *verbs = command.split()
    nouns = noun.split("|")
    ways = [[verb] for verb in verbs[0].split("|")] if verbs else [[]]
    return [[one, *way] for one in nouns for way in ways]


def exists(words: list[str]) -> bool:
    here = app
    for word in words:
        if word not in here:
            # Words after a command that has no commands below it are its arguments.
            return here is not app and not any(name[0] != "-" for name in here)
        here = here[word]
    return True


def test_every_command_in_the_pages_exists():
    missing = [
        (page, " ".join(words))
        for page in PAGES
        for code in CODE.findall(text_of(page))
        for command in COMMAND.findall(code)
        for words in words_of(command)
        if words[0] != "import" and not exists(words)
    ]
    assert not missing


def test_the_readme_names_every_command():
    readme = text_of(Path("README.md"))
    named = {
        " ".join(words)
        for code in CODE.findall(readme)
        for command in COMMAND.findall(code)
        for words in words_of(command)
    } | {f"make {target}" for target in re.findall(r"make (\w+)", readme)}
    for noun in (name for name in app if name[0] != "-"):
        verbs = [name for name in app[noun] if name[0] != "-"]
        for verb in verbs:
            assert f"{noun} {verb}" in named


def test_every_make_target_in_the_pages_exists():
    targets = set(re.findall(r"^([a-z-]+):", text_of(Path("Makefile")), re.MULTILINE))
    named = {
        target
        for page in PAGES
        for code in CODE.findall(text_of(page))
        for target in re.findall(r"\bmake ([a-z-]+)", code)
    }
    assert named <= targets


def test_every_module_that_a_page_names_is_there():
    known = [f"/{one}" for one in files_with(".py")]
    named = {
        (page, name)
        for page in PAGES
        for name in re.findall(r"`((?:\w+/)+\w+\.py)\b", text_of(page))
    }
    assert not [one for one in named if not any(file.endswith(f"/{one[1]}") for file in known)]


def steps_of(text: str) -> dict[str, set[str]]:
    """Return which names a text says that files of the product have."""
    steps: dict[str, set[str]] = {}
    for line in text.splitlines():
        file = None
        for name in re.findall(r"`([^`]+)`", line):
            if name.endswith(".py"):
                file = name
                steps.setdefault(file, set())
            elif file is not None and re.fullmatch(r"[A-Za-z_.]+", name):
                steps[file].update(name.split("."))
    return steps


@pytest.mark.parametrize(
    ("way", "most"),
    [
        ("A put", 8), ("A get", 8), ("A recovery", 12), ("A delayed message", 8),
        ("A transaction", 8), ("A replication session", 8),
    ],
)  # fmt: skip
def test_a_reader_follows_a_message_through_few_files(way, most):
    text = text_of(Path("docs/how-it-works/reading-the-code.md"))
    section = text.split(f"## {way}\n")[1].split("\n## ")[0]
    of_others = section.find("A store that\nis only read")
    assert len(steps_of(section[:of_others] if of_others > 0 else section)) <= most + (
        2 if way == "A recovery" else 0  # of another policy, and of a repair
    )


@pytest.mark.parametrize(("page", "fewest"), [("reading-the-code", 31), ("broker", 20)])
def test_every_step_of_a_way_through_the_code_is_there(page, fewest):
    steps = steps_of(text_of(Path(f"docs/how-it-works/{page}.md")))
    assert len(steps) >= fewest
    for file, names in steps.items():
        source = text_of(Path("src/rocketstore") / file)
        defined = set(re.findall(r"\b(?:def|class) (\w+)", source))
        defined |= set(re.findall(r"\b(?:self\.)?(\w+) = ", source))
        assert names - defined - {"MessageStore"} == set(), file


def test_each_format_with_a_page_has_a_fuzzer():
    """But `file_name`: it reads names, of which its own tests give it any."""
    pages = (text_of(page) for page in PAGES if page.parent == Path("docs/format"))
    defined = {re.findall(r"src/rocketstore/format/(\w+)\.py", page)[0] for page in pages}
    fuzzers = [text_of(one) for one in files_with(".py") if one.parent == Path("tests/fuzz")]
    fuzzed = {name for one in fuzzers for name in re.findall(r"rocketstore\.format\.(\w+)", one)}
    assert defined - fuzzed == {"file_name"}


FOREIGN = {"delta_scan", "epoll_ctl", "epoll_wait", "patch_all"}
"""Names of other programs, which pages mention."""


def test_every_name_of_code_that_a_page_mentions_is_in_the_code():
    """But for those of metrics, which are put together from parts."""
    code = {word for one in files_with(".py", ".pxd") for word in NAME.findall(text_of(one))}
    code |= {one.stem for one in files_with(".py")}
    parents = (Path("docs/guide"), Path("docs/how-it-works"), Path("docs/reference"))
    missing = {
        (page.name, word)
        for page in PAGES
        if page.parent in parents and page.name != "watching.md"
        for inline in re.findall(r"`([^`\n]+)`", FENCE.sub("", text_of(page)))
        for word in NAME.findall(inline)
        if word not in code | FOREIGN
    }
    assert not missing
