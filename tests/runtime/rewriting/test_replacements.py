"""Rules: what they replace and leave alone, the positions of annotations, and rules that don't terminate."""

import asyncio
import re

import pytest
from hypothesis import given, strategies as st

from antiphon.runtime.rewriting import rule_pool
from antiphon.runtime.rewriting.annotations import Edit, move_by_edits, move_by_words
from antiphon.runtime.rewriting.failure import RewriteFailed
from antiphon.runtime.rewriting.replacements import Replacement, TextTooLong, apply_rules, code_blocks
from antiphon.runtime.rewriting.rule_pool import RulePool, RuleTask

CODE = "Use `a` here.\n\n```python\na = 1\n```\n~~~\na\n```\n~~~~\nand ``a ` a`` a\n"
PATIENCE_S = 20
texts = st.text("ab` \n~", max_size=60)
rules = st.sampled_from([("a", "b"), ("a+", ""), ("(a)(b)", r"\2\1"), ("b*", "xyz"), (r"\b", "|"), ("^a", "A"), ("$", "!")])


def rule(pattern, template, flags=0):
    return Replacement(re.compile(pattern, flags), template)


@given(texts, st.lists(rules, max_size=3))
def test_rules_replace_as_the_standard_library_does(text, pairs):
    expected = text
    for pattern, template in pairs:
        expected = re.sub(pattern, template, expected)
    assert apply_rules(text, [rule(*pair) for pair in pairs], False, 10**6)[0] == expected


@given(texts, rules)
def test_code_stays_as_it_is_and_the_rest_is_replaced(text, pair):
    after, _ = apply_rules(text, [rule("a", "c")], True, 10**6)
    assert [block.replace("c", "a") for block in code_blocks(after)] == code_blocks(text)
    assert len(after) == len(text) and after.replace("c", "a") == text
    assert sum(block.count("a") for block in code_blocks(text)) == after.count("a")


def test_fences_and_backquotes_are_code():
    assert code_blocks(CODE) == ["`a`", "```python\na = 1\n```", "~~~\na\n```\n~~~~", "``a ` a``"]
    assert apply_rules(CODE, [rule("a", "o")], True, 1000)[0].count("o") == CODE.count("o") + 2
    assert code_blocks("```\nnever closed") == ["```\nnever closed"]


def test_a_text_that_grows_too_much_is_refused():
    with pytest.raises(TextTooLong):
        apply_rules("aaa", [rule("a", "x" * 100)], False, 200)


@given(texts, st.lists(rules, min_size=1, max_size=3), st.data())
def test_annotations_outside_of_replacements_move_with_their_words(text, pairs, data):
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    marked = text[:start] + "\x00" * 3 + text[end:]  # what no rule matches
    after, all_edits = apply_rules(marked, [rule(*pair) for pair in pairs if pair[0] not in ("b*", r"\b")], False, 10**6)
    annotations = [{"start_index": start, "end_index": start + 3, "title": "x"}, {"index": 7}]
    for edits in all_edits:
        annotations = move_by_edits(annotations, edits)
    place, other = annotations
    assert after[place["start_index"] : place["end_index"]] == "\x00" * 3 and place["title"] == "x" and other == {"index": 7}


def test_an_annotation_follows_what_replaces_its_words_and_goes_with_them():
    annotation = {"start_index": 2, "end_index": 6}
    assert move_by_edits([annotation], [Edit(0, 1, 3), Edit(3, 4, 2)]) == [{"start_index": 4, "end_index": 9}]
    assert move_by_edits([annotation], [Edit(4, 9, 1)]) == [{"start_index": 2, "end_index": 5}]
    assert move_by_edits([annotation], [Edit(0, 9, 0)]) == []
    assert move_by_edits([annotation], [Edit(0, 9, 4)]) == [{"start_index": 0, "end_index": 4}]


@pytest.mark.parametrize(
    ("after", "place"),
    [
        ("Now: the cat.", (9, 12)),
        ("A dog and a bird", None),
        ("cat cat cat", None),
        ("cat", (0, 3)),
        ("a cat, the other cat", (2, 5)),
    ],
)
def test_after_a_model_an_annotation_is_where_its_words_are(after, place):
    before = "The cat saw a cat." if after.count("cat") == 2 else "The cat."
    moved = move_by_words([{"start_index": 4, "end_index": 7}], before, after)
    assert [(each["start_index"], each["end_index"]) for each in moved] == ([] if place is None else [place])


def test_annotations_that_are_not_of_a_place_or_of_nothing_sensible_do_no_harm():
    odd = [{"type": "file_path"}, {"start_index": None, "end_index": 3}]
    assert move_by_words(odd, "a", "b") == odd == move_by_edits(odd, [Edit(0, 1, 1)])
    assert move_by_words([{"start_index": 5, "end_index": 2}, {"start_index": 90, "end_index": 99}], "a", "b") == []


def task(text="a colour", pattern="colour", template="color", **fields):
    return RuleTask(**{"text": text, "rules": [(pattern, template, False)], "skip_code": True, "max_chars": 1000} | fields)


def with_pool(scenario, **fields):
    async def run():
        pool = RulePool(**fields)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await scenario(pool)
        finally:
            await pool.stop()
            await pool.stop()

    asyncio.run(run())


def test_the_process_of_the_rules_answers_and_is_used_again():
    async def scenario(pool):
        result = await pool.apply(task())
        assert (result.text, result.edits) == ("a color", [[Edit(2, 8, 5)]])
        (process,) = pool._idle_processes
        assert (await pool.apply(task("no match"))).edits == [[]]
        assert pool._idle_processes == [process]
        with pytest.raises(RewriteFailed, match="too long"):
            await pool.apply(task(template="x" * 2000))
        with pytest.raises(RewriteFailed, match="Unicode"):
            await pool.apply(task(text="\ud800"))
        assert (await pool.apply(task(text="ÄÖ\u2028\x00 colour"))).text == "ÄÖ\u2028\x00 color"

    with_pool(scenario)


def test_a_process_is_started_before_it_is_needed(monkeypatch):
    async def scenario(pool):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(5):
                tasks.create_task(pool.prepare())
        (process,) = pool._idle_processes
        monkeypatch.setattr(rule_pool, "PROCESS_MODULE", ("-c", "1 / 0"))
        assert (await pool.apply(task(), "")).text == "a color"
        assert pool._idle_processes == [process]

    with_pool(scenario)


def test_a_process_that_does_not_start_is_killed(monkeypatch):
    monkeypatch.setattr(rule_pool, "PROCESS_MODULE", ("-c", "import time; time.sleep(3600)"))
    monkeypatch.setattr(rule_pool, "START_TIMEOUT_S", 0.1)

    async def scenario(pool):
        for start in (pool.prepare, lambda: pool.apply(task())):
            with pytest.raises(RewriteFailed, match=r"did not start within 0\.1 s"):
                await start()
        assert pool._idle_processes == []

    with_pool(scenario)


def test_a_rule_that_runs_away_is_killed_and_holds_up_its_own_key_only():
    runaway = task("a" * 60 + "!", "(a+)+$")

    async def scenario(pool):
        async with asyncio.TaskGroup() as tasks:
            stuck = tasks.create_task(pool.apply(runaway, "mallory"))
            waiting = tasks.create_task(pool.apply(task(), "mallory"))
            assert (await pool.apply(task(), "alice")).text == "a color"
            assert not stuck.done() and not waiting.done()
            stuck.cancel()
            assert (await waiting).text == "a color"
        assert len(pool._idle_processes) == 1, "the other one was killed"

    with_pool(scenario)


def test_there_are_no_more_processes_than_allowed():
    runaway = task("a" * 60 + "!", "(a+)+$")

    async def scenario(pool):
        async with asyncio.TaskGroup() as tasks:
            stuck = tasks.create_task(pool.apply(runaway, "mallory"))
            await asyncio.sleep(0)
            waiting = tasks.create_task(pool.apply(task(), "alice"))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await asyncio.shield(waiting)
            stuck.cancel()
            assert (await waiting).text == "a color"

    with_pool(scenario, max_processes=1)


def test_a_process_that_died_is_replaced():
    async def scenario(pool):
        await pool.apply(task())
        (process,) = pool._idle_processes
        process._process.kill()
        await process._process.wait()
        while not process.is_over:  # noqa: ASYNC110 - its socket says it
            await asyncio.sleep(0)
        assert (await pool.apply(task())).text == "a color"
        assert pool._idle_processes != [process]

    with_pool(scenario)
