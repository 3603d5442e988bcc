"""Containers: whose they are, when they expire, what they hold; and files that hostile code arranged."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ClientError, ServerError
from antiphon.tools.code_interpreter import folder
from antiphon.tools.code_interpreter.containers import FORGET_S, Containers
from antiphon.tools.code_interpreter.records import ContainerFile, ContainerLimits

LIMITS = ContainerLimits(containers=3, bytes=100_000, tenant_bytes=150_000, files=20)


class Clock:
    """Unix seconds that a test moves on."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def with_containers(
    tmp_path: Path, dialogue: Callable[[Containers, Clock], Coroutine[Any, Any, None]], limits: ContainerLimits = LIMITS
) -> None:
    async def run() -> None:
        clock = Clock()
        containers = Containers(tmp_path / "containers", limits, clock)
        try:
            await dialogue(containers, clock)
        finally:
            await containers.close()

    asyncio.run(run())


async def refusal(call: Coroutine[Any, Any, object]) -> tuple[int, str | None]:
    with pytest.raises(ClientError) as caught:
        await call
    return caught.value.status, caught.value.code


async def content(containers: Containers, file: ContainerFile, tenant: str = "ann") -> bytes:
    _, parts = await containers.read_file(tenant, file.container_id, file.id)
    return b"".join([part async for part in parts])


def test_no_tenant_sees_anothers_containers(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        own = await containers.create("ann", "work")
        file = await containers.add_file("ann", own.id, "a.txt", chunks(b"secret"))
        not_found = (404, "not_found")
        assert await refusal(containers.get("bob", own.id)) == not_found
        assert await refusal(containers.delete("bob", own.id)) == not_found
        assert await refusal(containers.add_file("bob", own.id, "b.txt", chunks(b""))) == not_found
        assert await refusal(containers.get_file("bob", own.id, file.id)) == not_found
        other = await containers.create("bob", "work")
        assert await refusal(containers.read_file("bob", other.id, file.id)) == not_found
        assert [each.id for each in (await containers.list("bob")).containers] == [other.id]
        assert await content(containers, file) == b"secret"

    with_containers(tmp_path, dialogue)


@pytest.mark.parametrize("container_id", ["", "cntr_", "../../etc", "cntr_" + "0" * 47 + "/", "cntr_" + "0" * 48, "cntr_" + "A" * 48, "\0"])
def test_what_is_no_id_of_a_container_is_not_found(tmp_path, container_id):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        assert await refusal(containers.get("ann", container_id)) == (404, "not_found")

    with_containers(tmp_path, dialogue)


def test_a_container_expires_when_it_is_not_used_and_never_comes_back(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        container = await containers.create("ann", "work", expires_after_minutes=2)
        file = await containers.add_file("ann", container.id, "a.txt", chunks(b"x"))
        clock.now += 119
        assert (await containers.get("ann", container.id)).status == "running"
        clock.now += 119
        await containers.sweep()
        assert await content(containers, file) == b"x"
        clock.now += 120
        for _ in range(2):
            assert (await containers.get("ann", container.id)).status == "expired"
            assert await refusal(containers.use("ann", container.id)) == (400, "container_expired")
            assert await refusal(containers.get_file("ann", container.id, file.id)) == (400, "container_expired")
            await containers.sweep()
        assert not containers.data_folder(container.id).exists()
        assert [each.status for each in (await containers.list("ann")).containers] == ["expired"]
        clock.now += FORGET_S + 1
        await containers.sweep()
        assert await refusal(containers.get("ann", container.id)) == (404, "not_found")

    with_containers(tmp_path, dialogue)


def test_lists_are_paged_in_both_orders_and_by_name(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        ids = [(await containers.create("ann", name)).id for name in ("a", "b", "a")]
        page = await containers.list("ann", limit=2)
        assert ([each.id for each in page.containers], page.has_more) == ([ids[2], ids[1]], True)
        page = await containers.list("ann", limit=2, after=ids[1])
        assert ([each.id for each in page.containers], page.has_more) == ([ids[0]], False)
        page = await containers.list("ann", order="asc", name="a")
        assert [each.id for each in page.containers] == [ids[0], ids[2]]
        assert await refusal(containers.list("ann", after="cntr_unknown")) == (400, "invalid_value")
        files = [(await containers.add_file("ann", ids[0], name, chunks(b""))).id for name in "xyz"]
        page_of_files = await containers.list_files("ann", ids[0], limit=1, order="asc", after=files[0])
        assert ([each.id for each in page_of_files.files], page_of_files.has_more) == ([files[1]], True)

    with_containers(tmp_path, dialogue)


def test_limits_of_number_and_size_hold_and_name_themselves(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        first = await containers.create("ann", "1")
        await containers.add_file("ann", first.id, "a", chunks(b"x" * 50_000, b"x" * 40_000))
        assert await refusal(containers.add_file("ann", first.id, "b", chunks(b"x" * 20_000))) == (400, "file_too_large")
        assert [each.filename for each in (await containers.list_files("ann", first.id)).files] == ["a"]
        second = await containers.create("ann", "2")
        assert await refusal(containers.add_file("ann", second.id, "b", chunks(b"x" * 70_000))) == (400, "file_too_large")
        await containers.create("ann", "3")
        clock.now += 60
        with pytest.raises(ClientError) as caught:
            await containers.create("ann", "4")
        error = caught.value
        assert (error.status, error.type, error.code) == (429, "rate_limit_error", "rate_limit_exceeded")
        assert error.retry_after_s == 20 * 60 - 60
        await containers.delete("ann", first.id)
        await containers.create("ann", "4")
        await containers.add_file("ann", second.id, "b", chunks(b"x" * 70_000))
        assert await refusal(containers.create("bob", "5", memory_limit="64g")) == (400, "unsupported_value")
        assert await refusal(containers.create("bob", "5", expires_after_minutes=21)) == (400, "invalid_value")
        for number in range(LIMITS.files - 1):
            await containers.add_file("ann", second.id, f"f{number}", chunks(b""))
        assert await refusal(containers.add_file("ann", second.id, "last", chunks(b""))) == (400, "too_many_files")

    with_containers(tmp_path, dialogue)


def test_a_full_disk_is_a_passing_error_of_the_server(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        database = containers._index._database
        # SQLite's own limit gives the same error as a full disk: https://www.sqlite.org/rescode.html#full
        database.execute(f"PRAGMA max_page_count = {database.execute('PRAGMA page_count').fetchone()[0]}")
        with pytest.raises(ServerError) as caught:
            for _ in range(1000):
                await containers.create("ann", "x" * 256)
        error = caught.value
        assert (error.status, error.type, error.code) == (503, "service_unavailable_error", "containers_unavailable")
        assert error.retry_after_s and "disk is full" in error.operator_message and "disk" not in error.message
        living = {each.id for each in (await containers.list("ann", limit=1000)).containers}
        assert {path.name for path in containers.data_folder("").iterdir()} == living

    with_containers(tmp_path, dialogue, ContainerLimits(containers=1000))


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "a\0b", "a\nb", "\x1b[31m", "\udcff", "x" * 256, "é" * 128, "\u202egnp.exe", "\x85"]
)
def test_a_name_that_would_mislead_or_lead_out_is_refused(tmp_path, name):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        container = await containers.create("ann", "work")
        assert await refusal(containers.add_file("ann", container.id, name, chunks(b""))) == (400, "invalid_value")

    with_containers(tmp_path, dialogue)


@pytest.mark.parametrize("name", ["report.csv", "Übersicht 2026.txt", "日本語.md", "👩\u200d🔬.png", "-rf", "a'b\"c", "x" * 255])
def test_a_name_in_any_script_is_stored_as_it_is(tmp_path, name):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        container = await containers.create("ann", "work")
        file = await containers.add_file("ann", container.id, name, chunks(b"1", b"2"))
        assert (file.filename, file.bytes, file.source, file.path) == (name, 2, "user", f"/mnt/data/{name}")
        assert await content(containers, file) == b"12"
        again = await containers.add_file("ann", container.id, name, chunks(b"345"))
        assert (again.id, await content(containers, again)) == (file.id, b"345")
        await containers.delete_file("ann", container.id, file.id)
        assert not (await containers.list_files("ann", container.id)).files

    with_containers(tmp_path, dialogue)


def test_files_that_code_wrote_are_found_by_what_changed(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        container = await containers.create("ann", "work")
        await containers.add_file("ann", container.id, "old.txt", chunks(b"old"))
        await containers.add_file("ann", container.id, "gone.txt", chunks(b"gone"))
        data = containers.data_folder(container.id)
        (data / "sub").mkdir()
        (data / "sub" / "new.txt").write_bytes(b"new")
        (data / "gone.txt").unlink()
        changes = await containers.record_changes(container, await containers.scan_files(container))
        assert [(each.path, each.source) for each in changes] == [("/mnt/data/sub/new.txt", "assistant")]
        assert await containers.record_changes(container, await containers.scan_files(container)) == []
        status = os.stat(data / "sub" / "new.txt")
        (data / "sub" / "new.txt").write_bytes(b"NEW")
        os.utime(data / "sub" / "new.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
        again = await containers.record_changes(container, await containers.scan_files(container))
        assert [each.id for each in again] == [changes[0].id]
        assert await content(containers, again[0]) == b"NEW"
        assert {each.filename for each in (await containers.list_files("ann", container.id)).files} == {"old.txt", "new.txt"}

    with_containers(tmp_path, dialogue)


def test_what_code_did_to_a_container_that_is_deleted_meanwhile_leaves_no_record(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        container = await containers.create("ann", "work")
        (containers.data_folder(container.id) / "a.txt").write_text("x")
        holding = await containers.scan_files(container)
        await containers.delete("ann", container.id)
        assert await containers.record_changes(container, holding) == []
        assert containers._index.stamps(container.id) == {}

    with_containers(tmp_path, dialogue)


def test_nothing_that_code_arranges_leads_out_of_the_folder(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        container = await containers.create("ann", "work")
        data = containers.data_folder(container.id)
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "secret.txt").write_text("secret")
        (data / "link.txt").symlink_to(outside / "secret.txt")
        (data / "folder").symlink_to(outside)
        os.mkfifo(data / "fifo")
        (data / "real").mkdir()
        (data / "real" / "a.txt").write_text("mine")
        (data / "bad\nname").write_text("")
        (data / os.fsdecode(b"\xff\xfe")).write_text("")
        (data / "\u202egnp.exe").write_text("")
        changes = await containers.record_changes(container, await containers.scan_files(container))
        assert [each.path for each in changes] == ["/mnt/data/real/a.txt"]
        os.rename(data / "real", data / "was")
        (data / "real").symlink_to(outside)
        (outside / "a.txt").write_text("not yours")
        assert await refusal(containers.read_file("ann", container.id, changes[0].id)) == (404, "not_found")
        await containers.delete_file("ann", container.id, changes[0].id)
        assert (outside / "a.txt").exists()
        replaced = await containers.add_file("ann", container.id, "link.txt", chunks(b"mine"))
        assert (await content(containers, replaced), (outside / "secret.txt").read_text()) == (b"mine", "secret")
        assert await refusal(containers.add_file("ann", container.id, "was", chunks(b"x"))) == (400, None)
        await containers.delete("ann", container.id)
        assert (outside / "secret.txt").exists()
        assert not data.exists()

    with_containers(tmp_path, dialogue)


def test_files_beyond_a_limit_go_and_those_from_before_stay(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        container = await containers.create("ann", "work")
        await containers.add_file("ann", container.id, "old.txt", chunks(b"old"))
        data = containers.data_folder(container.id)
        for number in range(30):
            (data / f"{number}").mkdir()
            (data / f"{number}" / "x").write_bytes(b"x" * 10_000)
        assert (await containers.scan_files(container)).is_over
        await containers.discard_changes(container)
        assert os.listdir(data) == ["old.txt"]

    with_containers(tmp_path, dialogue)


def test_a_tree_of_any_depth_and_mode_is_removed(tmp_path):
    root = tmp_path / "tree"
    root.mkdir()
    folders = [os.open(root, os.O_RDONLY)]
    for _ in range(1500):  # deeper than Python's recursion, and longer than a path may be
        os.mkdir("d" * 100, dir_fd=folders[-1])
        folders.append(os.open("d" * 100, os.O_RDONLY, dir_fd=folders[-1]))
        os.close(folders.pop(0))
    os.close(folders[0])
    os.chmod(root / ("d" * 100), 0)
    assert folder.scan(root, 10_000).is_over
    folder.remove_tree(root)
    assert os.listdir(tmp_path) == []


def test_a_hole_counts_as_long_as_it_is(tmp_path):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    assert folder.scan(tmp_path, 10).bytes == 1 << 40


def test_two_processes_may_share_the_folder(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        other = Containers(tmp_path / "containers", LIMITS, clock)
        container = await containers.create("ann", "work")
        file = await other.add_file("ann", container.id, "a", chunks(b"1"))
        assert await content(containers, file) == b"1"
        await other.close()
        await other.close()

    with_containers(tmp_path, dialogue)


def test_uploads_at_once_share_what_is_free(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        container = await containers.create("ann", "work")
        is_sent, is_full = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"x" * 60_000
            is_sent.set()
            await is_full.wait()

        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(containers.add_file("ann", container.id, "a", slow()))
            await is_sent.wait()
            assert await refusal(containers.add_file("ann", container.id, "b", chunks(b"x" * 50_000))) == (400, "file_too_large")
            is_full.set()
        assert (await first).bytes == 60_000
        await containers.add_file("ann", container.id, "b", chunks(b"x" * 30_000))

    with_containers(tmp_path, dialogue)


def test_an_upload_counts_what_others_have_brought_while_it_was_sent(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        container = await containers.create("ann", "work")
        is_sent, is_stored = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"x" * 30_000
            is_sent.set()
            await is_stored.wait()
            yield b"x" * 20_000

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(refused_as_too_large(containers.add_file("ann", container.id, "b", slow())))
            await is_sent.wait()
            await containers.add_file("ann", container.id, "a", chunks(b"x" * 60_000))
            is_stored.set()
        assert [file.filename for file in (await containers.list_files("ann", container.id)).files] == ["a"]

    async def refused_as_too_large(upload: Coroutine[Any, Any, object]) -> None:
        assert await refusal(upload) == (400, "file_too_large")

    with_containers(tmp_path, dialogue)


def test_a_container_that_is_deleted_while_a_file_is_sent_is_not_found(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        container = await containers.create("ann", "work")

        async def late() -> AsyncIterator[bytes]:
            await containers.delete("ann", container.id)
            yield b"x"

        assert await refusal(containers.add_file("ann", container.id, "a", late())) == (404, "not_found")
        assert os.listdir(tmp_path / "containers" / "incoming") == []

    with_containers(tmp_path, dialogue)


def test_a_file_takes_the_room_of_the_one_that_it_replaces(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        container = await containers.create("ann", "work")
        first = await containers.add_file("ann", container.id, "a", chunks(b"x" * 60_000))
        second = await containers.add_file("ann", container.id, "a", chunks(b"y" * 80_000))
        assert (first.id, await content(containers, second)) == (second.id, b"y" * 80_000)
        other = await containers.create("ann", "other")
        await containers.add_file("ann", other.id, "a", chunks(b"x" * 60_000))
        for number in range(LIMITS.files - 1):
            await containers.add_file("ann", container.id, f"{number}", chunks(b""))
        await containers.add_file("ann", container.id, "a", chunks(b""))
        assert await refusal(containers.add_file("ann", container.id, "b", chunks(b""))) == (400, "too_many_files")

    with_containers(tmp_path, dialogue)


def test_two_processes_may_remove_what_a_killed_server_left_at_the_same_time(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        other = Containers(tmp_path / "containers", LIMITS, clock)
        incoming = tmp_path / "containers" / "incoming"
        for number in range(3000):
            (incoming / f"{number}").touch()
            os.utime(incoming / f"{number}", (0, 0))
        async with asyncio.TaskGroup() as group:
            group.create_task(containers.sweep())
            group.create_task(other.sweep())
        assert os.listdir(incoming) == []
        await other.close()

    with_containers(tmp_path, dialogue)


def test_what_a_killed_server_left_is_removed(tmp_path):
    async def dialogue(containers: Containers, clock: Clock) -> None:
        container = await containers.create("ann", "work")
        upload = tmp_path / "containers" / "incoming" / "old"
        upload.write_text("x")
        os.utime(upload, (0, 0))
        young = tmp_path / "containers" / "incoming" / "young"
        young.write_text("x")
        await containers.sweep()
        assert (upload.exists(), young.exists(), containers.data_folder(container.id).exists()) == (False, True, True)

    with_containers(tmp_path, dialogue)
