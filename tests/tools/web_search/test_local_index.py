"""The local index: files of folders, pages that were fetched, and who finds which."""

import asyncio
import contextlib
import os
import sqlite3

import pytest
from hypothesis import given, settings, strategies as st

from antiphon.tools.web_search.base import SearchFailure, SearchQuery
from antiphon.tools.web_search.local_index import LocalIndex, PageFolder
from antiphon.tools.web_search.page_text import PageText

URL = "https://docs.example/h/"


@contextlib.asynccontextmanager
async def index(folder=None, file=None, max_bytes=1_000_000):
    opened = LocalIndex(file, [PageFolder(folder, URL)] if folder else [], max_bytes, refresh_s=0)
    try:
        yield opened
    finally:
        await opened.close()


async def urls(opened, text, tenant="a", **query):
    return [result.url for result in await opened.search(SearchQuery(text=text, tenant=tenant, **query))]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "pages"
    (place / "sub").mkdir(parents=True)
    (place / "bells.md").write_text("# Bells\n\nBells are rung before the antiphon.")
    (place / "sub" / "a b.html").write_text("<title>Organs</title><body><p>Pipes of an organ<p hidden>secret words")
    (place / "ünï.txt").write_text("Cantors lead the choir.")
    (place / "code.py").write_text("bells = 1")
    (place / ".hidden.md").write_text("bells")
    return place


def test_files_of_a_folder_are_found_and_read_by_their_addresses(folder):
    async def run():
        async with index(folder) as opened:
            assert await urls(opened, "bells") == [f"{URL}bells.md"]
            [result, *_] = await opened.search(SearchQuery(text="What are PIPES?", tenant="a"))
            assert (result.url, result.title) == (f"{URL}sub/a%20b.html", "Organs")
            assert "Pipes of an organ" in result.snippet and "secret" not in result.snippet
            assert await urls(opened, "secret") == []
            assert await opened.read("a", f"{URL}bells.md") == PageText("Bells", "# Bells\n\nBells are rung before the antiphon.")
            assert await opened.read("a", f"{URL}code.py") is None
            assert await opened.has_file(f"{URL}%C3%BCn%C3%AF.txt") and not await opened.has_file(f"{URL}none.md")

    asyncio.run(run())


def test_a_file_that_changes_comes_or_goes_is_seen_at_the_next_search(folder):
    async def run():
        async with index(folder) as opened:
            assert await urls(opened, "bells") == [f"{URL}bells.md"]
            (folder / "bells.md").write_text("Nothing of the kind any more.")
            (folder / "new.md").write_text("Bells again")
            assert await urls(opened, "bells") == [f"{URL}new.md"]
            (folder / "new.md").unlink()
            assert await urls(opened, "bells") == []

    asyncio.run(run())


def test_links_out_of_the_folder_are_not_followed(folder, tmp_path):
    (tmp_path / "outside.md").write_text("bells outside")
    (folder / "link.md").symlink_to(tmp_path / "outside.md")
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)

    async def run():
        async with index(folder) as opened:
            assert await urls(opened, "outside") == []

    asyncio.run(run())


def test_a_file_that_cant_be_read_leaves_the_others(folder):
    os.mkfifo(folder / "pipe.md")
    (folder / "large.md").write_bytes(b"bells " * 1_000_000)

    async def run():
        async with index(folder) as opened:
            assert await urls(opened, "bells") == [f"{URL}bells.md"]

    asyncio.run(run())


def test_a_tenant_finds_its_own_pages_and_those_of_folders(folder):
    async def run():
        async with index(folder) as opened:
            await opened.add("a", "https://a.example/?token=secret", PageText("A", "bells of tenant a"))
            assert await urls(opened, "tenant") == ["https://a.example/?token=secret"]
            assert await urls(opened, "tenant", tenant="b") == []
            assert await urls(opened, "tenant", tenant="") == []
            assert await opened.read("b", "https://a.example/?token=secret") is None
            assert set(await urls(opened, "bells", tenant="b")) == {f"{URL}bells.md"}
            await opened.add("a", "https://a.example/?token=secret", PageText("A", "changed"))
            assert await urls(opened, "tenant") == []

    asyncio.run(run())


def test_the_tenant_that_has_most_loses_its_oldest():
    async def run():
        async with index(max_bytes=1000) as opened:
            await opened.add("small", "https://s.example/", PageText("", "bells " * 10))
            for number in range(10):
                await opened.add("large", f"https://l.example/{number}", PageText("", "bells " * 40))
            assert await urls(opened, "bells", tenant="small") == ["https://s.example/"]
            assert set(await urls(opened, "bells", tenant="large")) == {f"https://l.example/{number}" for number in (7, 8, 9)}

    asyncio.run(run())


def test_domains_hold_here_too():
    async def run():
        async with index() as opened:
            for host in ("a.example", "sub.a.example", "b.example"):
                await opened.add("a", f"https://{host}/", PageText("", "bells"))
            assert set(await urls(opened, "bells", allowed_domains=("a.example",))) == {"https://a.example/", "https://sub.a.example/"}
            assert set(await urls(opened, "bells", blocked_domains=("a.example",))) == {"https://b.example/"}
            assert len(await urls(opened, "bells", max_results=2)) == 2

    asyncio.run(run())


def test_a_file_keeps_the_index_and_forgets_folders_that_are_gone(folder, tmp_path):
    async def run():
        async with index(folder, tmp_path / "index.sqlite3") as opened:
            await opened.add("a", "https://a.example/", PageText("A", "bells"))
            assert len(await urls(opened, "bells")) == 2
        async with index(None, tmp_path / "index.sqlite3") as opened:
            assert await urls(opened, "bells") == ["https://a.example/"]
        async with index(folder, tmp_path / "index.sqlite3") as opened:
            assert len(await urls(opened, "bells")) == 2

    asyncio.run(run())


def test_two_processes_may_share_the_file(folder, tmp_path):
    async def run():
        file = tmp_path / "index.sqlite3"
        async with index(folder, file) as one, index(folder, file) as two:
            async with asyncio.TaskGroup() as group:
                for number in range(10):
                    for opened in (one, two):
                        group.create_task(opened.add("a", f"https://a.example/{number}", PageText("", "bells")))
                        group.create_task(urls(opened, "bells"))
            assert len(await urls(one, "bells", max_results=50)) == 11

    asyncio.run(run())


def test_another_programs_file_is_left_alone(tmp_path):
    file = tmp_path / "accounts.sqlite3"
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE accounts (name)")
    before = file.read_bytes()

    async def run():
        async with index(file=file) as opened:
            with pytest.raises(SearchFailure, match="can't be used") as caught:
                await urls(opened, "bells")
            assert "accounts" not in caught.value.message
            assert "another program" in caught.value.operator_message

    asyncio.run(run())
    assert file.read_bytes() == before


@settings(max_examples=50)
@given(
    st.text(max_size=200)
    | st.sampled_from(['"', 'a" OR "b', "title:x NEAR(y)", "* OR ^a", "x" * 5000, "日本 語", "\0", "'; DROP TABLE pages"])
)
def test_any_text_may_be_searched_for(text):
    async def run():
        async with index() as opened:
            await opened.add("a", "https://a.example/", PageText("T", "bells"))
            assert len(await urls(opened, text)) <= 1
            assert await urls(opened, "bells") == ["https://a.example/"]

    asyncio.run(run())
